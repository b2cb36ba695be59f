#include "aerie/data/nuscenes/tables/json_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

constexpr size_t kMinBlockBytes = 4 << 10;
constexpr size_t kMaxBlockBytes = 1 << 20;

enum : uint8_t { kPlain, kQuote, kOpen, kClose };

constexpr std::array<uint8_t, 256> make_kinds() {
  std::array<uint8_t, 256> out{};
  out['"'] = kQuote;
  out['{'] = out['['] = kOpen;
  out['}'] = out[']'] = kClose;
  return out;
}
constexpr std::array<uint8_t, 256> kKinds = make_kinds();

// The first quote or backslash in [at, end), or end.
const char* find_in_string(const char* at, const char* end) {
#ifdef __SSE2__  // part of every x86-64
  const __m128i quote = _mm_set1_epi8('"');
  const __m128i backslash = _mm_set1_epi8('\\');
  for (; end - at >= 16; at += 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const int found = _mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)));
    if (found != 0) return at + std::countr_zero(static_cast<unsigned>(found));
  }
#endif
  while (at != end && *at != '"' && *at != '\\') ++at;
  return at;
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::string shown(char c) {
  const auto value = static_cast<unsigned char>(c);
  if (value >= 0x20 && value < 0x7F) return str_cat("'", c, "'");
  return str_cat("byte ", static_cast<int>(value));
}

}  // namespace

std::string row_name(uint64_t row) {
  return str_cat("row ", row, " (counted from 0)");
}

Status RowSplitter::wrong(std::string_view what) const {
  return data_error(std::string(what)).with_context(row_name(row_));
}

RowSplitter::RowSplitter(RowVisitor visit, uint64_t file_bytes)
    : visit_(std::move(visit)),
      block_bytes_(std::clamp<uint64_t>(file_bytes + 1, kMinBlockBytes, kMaxBlockBytes)) {}

char* RowSplitter::room(size_t& size) {
  // The row at hand moves to the front; it is shorter than kMaxRowBytes.
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    at_ -= begin_;
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() < end_ + block_bytes_ + kRowPadding)
    buffer_.resize(end_ + block_bytes_ + kRowPadding);
  size = buffer_.size() - kRowPadding - end_;
  return buffer_.data() + end_;
}

Status RowSplitter::add(size_t size) {
  end_ += size;
  if (first_bytes_) {
    // Enough for a byte order mark, or all there is.
    if (end_ < 3) return ok_status();
    first_bytes_ = false;
    if (std::memcmp(buffer_.data(), "\xEF\xBB\xBF", 3) == 0) at_ = begin_ = 3;
  }
  return scan();
}

Status RowSplitter::finish() {
  if (first_bytes_) {
    first_bytes_ = false;
    AERIE_RETURN_IF_ERROR(scan());
  }
  switch (place_) {
    case Place::kStart:
      return data_error("the file is empty, not a JSON array of rows");
    case Place::kEnd:
      return ok_status();
    case Place::kInRow:
      return wrong("the file ends in the middle of it").with_hint("was it copied completely?");
    default:
      return data_error(str_cat("the file ends after ", row_, " rows without the closing ']'"))
          .with_hint("was it copied completely?");
  }
}

Status RowSplitter::scan() {
  while (at_ < end_) {
    AERIE_RETURN_IF_ERROR(place_ == Place::kInRow ? scan_row() : scan_between());
  }
  // Between rows nothing needs to stay.
  if (place_ != Place::kInRow) begin_ = at_;
  return ok_status();
}

Status RowSplitter::scan_between() {
  const char c = buffer_[at_];
  if (is_blank(c)) {
    ++at_;
    return ok_status();
  }
  switch (place_) {
    case Place::kStart:
      if (c == '{') return data_error("the file holds one JSON object, not an array of rows");
      if (c != '[')
        return data_error(str_cat("the file begins with ", shown(c), ", not with '['"))
            .with_hint("a table is a JSON array of objects");
      place_ = Place::kBeforeFirst;
      break;
    case Place::kBeforeFirst:
    case Place::kBeforeRow:
      if (c == ']' && place_ == Place::kBeforeFirst) {
        place_ = Place::kEnd;
        break;
      }
      if (c != '{') return wrong(str_cat("it begins with ", shown(c), ": not an object"));
      place_ = Place::kInRow;
      begin_ = at_;
      depth_ = 1;
      break;
    case Place::kAfterRow:
      if (c == ',') {
        place_ = Place::kBeforeRow;
      } else if (c == ']') {
        place_ = Place::kEnd;
      } else {
        return wrong(str_cat(shown(c), " stands before it, not a comma"));
      }
      break;
    default:
      return data_error(str_cat(shown(c), " stands behind the closing ']' of the array"));
  }
  ++at_;
  return ok_status();
}

Status RowSplitter::scan_row() {
  const char* const data = buffer_.data();
  const char* at = data + at_;
  const char* const end = data + end_;
  while (at != end) {
    if (escaped_) {
      escaped_ = false;
      ++at;
      continue;
    }
    if (in_string_) {
      at = find_in_string(at, end);
      if (at == end) break;
      if (*at == '\\')
        escaped_ = true;
      else
        in_string_ = false;
      ++at;
      continue;
    }
    const uint8_t kind = kKinds[static_cast<uint8_t>(*at)];
    ++at;
    if (kind == kPlain) continue;
    if (kind == kQuote) {
      in_string_ = true;
    } else if (kind == kOpen) {
      if (++depth_ > kMaxRowDepth)
        return wrong(str_cat("it is nested more than ", kMaxRowDepth, " deep"));
    } else if (--depth_ == 0) {
      at_ = static_cast<size_t>(at - data);
      if (at_ - begin_ > kMaxRowBytes) break;
      AERIE_RETURN_IF_ERROR(
          visit_({data + begin_, at_ - begin_}, row_).with_context(row_name(row_)));
      ++row_;
      place_ = Place::kAfterRow;
      begin_ = at_;
      return ok_status();
    }
  }
  at_ = static_cast<size_t>(at - data);
  if (at_ - begin_ > kMaxRowBytes)
    return wrong(str_cat("it is longer than ", kMaxRowBytes >> 20, " MiB"))
        .with_hint("is this a table of nuScenes?");
  return ok_status();
}

Status read_rows(Env& env, const std::string& path, const RowVisitor& visit,
                 const std::function<void(uint64_t bytes)>& progress) {
  const auto read = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(path));
    RowSplitter splitter(visit, file->size());
    for (uint64_t offset = 0;;) {
      size_t size = 0;
      char* const room = splitter.room(size);
      AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(offset, room, size));
      if (got == 0) break;
      offset += got;
      AERIE_RETURN_IF_ERROR(splitter.add(got));
      if (progress) progress(got);
    }
    return splitter.finish();
  };
  Status status = read();
  if (status.ok() || status.code() == StatusCode::kNotFound) return status;
  return std::move(status).with_context(path);
}

}  // namespace aerie::nuscenes
