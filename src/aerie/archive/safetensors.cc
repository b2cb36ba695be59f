#include "aerie/archive/safetensors.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr size_t kMaxTensors = 100000;
constexpr size_t kMaxStringBytes = 65536;
constexpr size_t kMaxMetadataBytes = size_t{4} << 20;

// Just the JSON a header may contain, read through a small window so that a header of 100 MB does
// not have to be in memory.
class HeaderReader {
 public:
  HeaderReader(const ByteSource& source, uint64_t begin, uint64_t end)
      : source_(source), next_(begin), end_(end), begin_(begin) {}

  Status error(std::string_view why) const {
    return data_error(str_cat("header, byte ", position() - begin_, ": ", why));
  }
  uint64_t position() const { return next_ - (window_.size() - at_); }

  // The next byte, -1 at the end. An I/O error ends the input and is reported by finish().
  int peek() {
    if (at_ == window_.size() && !fill()) return -1;
    return static_cast<unsigned char>(window_[at_]);
  }
  int get() {
    const int c = peek();
    if (c >= 0) ++at_;
    return c;
  }
  void skip_blanks() {
    for (int c = peek(); c == ' ' || c == '\n' || c == '\t' || c == '\r'; c = peek()) ++at_;
  }
  Status expect(char wanted) {
    skip_blanks();
    if (get() != wanted) return failed(str_cat("'", wanted, "' is missing"));
    return ok_status();
  }
  // True, and consumed, when the next byte is `c`.
  bool accept(char c) {
    skip_blanks();
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  Result<std::string> string();
  Result<uint64_t> integer();
  Status failed(std::string_view why) const { return io_.ok() ? error(why) : io_; }

 private:
  bool fill() {
    window_.clear();
    at_ = 0;
    if (next_ == end_ || !io_.ok()) return false;
    window_.resize(static_cast<size_t>(std::min<uint64_t>(end_ - next_, 65536)));
    io_ = source_.read(next_, window_.data(), window_.size());
    if (!io_.ok()) {
      window_.clear();
      return false;
    }
    next_ += window_.size();
    return true;
  }
  Result<uint32_t> hex4();

  const ByteSource& source_;
  uint64_t next_, end_, begin_;
  std::string window_;
  size_t at_ = 0;
  Status io_;
};

Result<uint32_t> HeaderReader::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int c = get();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return failed("bad \\u escape");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

Result<std::string> HeaderReader::string() {
  AERIE_RETURN_IF_ERROR(expect('"'));
  std::string out;
  while (true) {
    if (out.size() > kMaxStringBytes) return error("a string is longer than 64 KiB");
    const int c = get();
    if (c < 0) return failed("a string does not end");
    if (c == '"') break;
    if (c < 0x20) return error("a control character inside a string");
    if (c != '\\') {
      out.push_back(static_cast<char>(c));
      continue;
    }
    switch (get()) {
      case '"':
        out.push_back('"');
        break;
      case '\\':
        out.push_back('\\');
        break;
      case '/':
        out.push_back('/');
        break;
      case 'b':
        out.push_back('\b');
        break;
      case 'f':
        out.push_back('\f');
        break;
      case 'n':
        out.push_back('\n');
        break;
      case 'r':
        out.push_back('\r');
        break;
      case 't':
        out.push_back('\t');
        break;
      case 'u': {
        AERIE_ASSIGN_OR_RETURN(uint32_t code, hex4());
        if (code >= 0xd800 && code < 0xdc00) {
          if (get() != '\\' || get() != 'u') return failed("half a surrogate pair");
          AERIE_ASSIGN_OR_RETURN(const uint32_t low, hex4());
          if (low < 0xdc00 || low >= 0xe000) return error("half a surrogate pair");
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        } else if (code >= 0xdc00 && code < 0xe000) {
          return error("half a surrogate pair");
        }
        append_utf8(out, code);
        break;
      }
      default:
        return failed("unknown escape");
    }
  }
  if (!is_utf8(out)) return error("a string is not UTF-8");
  return out;
}

Result<uint64_t> HeaderReader::integer() {
  skip_blanks();
  uint64_t value = 0;
  int digits = 0;
  while (peek() >= '0' && peek() <= '9') {
    const auto digit = static_cast<uint64_t>(get() - '0');
    if (digits > 0 && value == 0) return error("a number with a leading zero");
    if (value > (UINT64_MAX - digit) / 10) return error("a number that does not fit");
    value = value * 10 + digit;
    ++digits;
  }
  const int c = peek();
  if (digits == 0 || c == '.' || c == 'e' || c == 'E')
    return failed("a whole, non-negative number is missing");
  return value;
}

// "[1, 2]"
Result<std::vector<uint64_t>> integers(HeaderReader& in, size_t max) {
  std::vector<uint64_t> out;
  AERIE_RETURN_IF_ERROR(in.expect('['));
  if (in.accept(']')) return out;
  do {
    if (out.size() == max) return in.error(str_cat("a list of more than ", max, " numbers"));
    AERIE_ASSIGN_OR_RETURN(const uint64_t value, in.integer());
    out.push_back(value);
  } while (in.accept(','));
  AERIE_RETURN_IF_ERROR(in.expect(']'));
  return out;
}

Result<std::map<std::string, std::string>> parse_metadata(HeaderReader& in) {
  std::map<std::string, std::string> out;
  AERIE_RETURN_IF_ERROR(in.expect('{'));
  if (in.accept('}')) return out;
  size_t bytes = 0;
  do {
    AERIE_ASSIGN_OR_RETURN(std::string key, in.string());
    AERIE_RETURN_IF_ERROR(in.expect(':'));
    AERIE_ASSIGN_OR_RETURN(std::string value, in.string());
    bytes += key.size() + value.size() + 64;
    if (bytes > kMaxMetadataBytes) return in.error("__metadata__ is larger than 4 MiB");
    const std::string name = quoted(key);
    if (!out.emplace(std::move(key), std::move(value)).second)
      return in.error(str_cat("__metadata__ has ", name, " twice"));
  } while (in.accept(','));
  AERIE_RETURN_IF_ERROR(in.expect('}'));
  return out;
}

struct Entry {
  TensorInfo info;
  uint64_t end = 0;
};

Result<Entry> parse_tensor(HeaderReader& in, std::string name) {
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
  AERIE_RETURN_IF_ERROR(in.expect('{'));
  do {
    AERIE_ASSIGN_OR_RETURN(const std::string key, in.string());
    AERIE_RETURN_IF_ERROR(in.expect(':'));
    if (key == "dtype" && !dtype) {
      AERIE_ASSIGN_OR_RETURN(dtype, in.string());
    } else if (key == "shape" && !shape) {
      AERIE_ASSIGN_OR_RETURN(shape, integers(in, 64));
    } else if (key == "data_offsets" && !offsets) {
      AERIE_ASSIGN_OR_RETURN(offsets, integers(in, 2));
    } else {
      return in.error(
          str_cat("tensor ", quoted(name), " has an unknown or repeated field ", quoted(key)));
    }
  } while (in.accept(','));
  AERIE_RETURN_IF_ERROR(in.expect('}'));
  const auto bad = [&](std::string_view why) {
    return in.error(str_cat("tensor ", quoted(name), " ", why));
  };
  if (!dtype || !shape || !offsets || offsets->size() != 2)
    return bad("lacks its dtype, shape or data_offsets");
  Entry entry;
  entry.info.name = std::move(name);
  const auto known = dtype_from_safetensors(*dtype);
  if (!known)
    return in.error(
        str_cat("tensor ", quoted(entry.info.name), " has the unknown type ", quoted(*dtype)));
  entry.info.dtype = *known;
  for (const uint64_t dim : *shape) {
    if (dim > INT64_MAX)
      return in.error(str_cat("tensor ", quoted(entry.info.name), " is impossibly large"));
    entry.info.shape.push_back(static_cast<int64_t>(dim));
  }
  auto numel = checked_numel(entry.info.shape);
  if (!numel.ok())
    return in.error(str_cat("tensor ", quoted(entry.info.name), ": ", numel.status().message()));
  entry.info.offset = (*offsets)[0];
  entry.end = (*offsets)[1];
  if (entry.end < entry.info.offset || entry.end - entry.info.offset != entry.info.nbytes())
    return in.error(str_cat("tensor ", quoted(entry.info.name), ": ", dtype_name(entry.info.dtype),
                            " ", shape_text(entry.info.shape), " takes ", entry.info.nbytes(),
                            " bytes, its data_offsets are [", entry.info.offset, ", ", entry.end,
                            "]"));
  return entry;
}

Result<TensorArchive> parse(const SourcePtr& source) {
  uint64_t header_size = 0;
  if (source->size() < sizeof header_size) return data_error("too short for a safetensors file");
  AERIE_RETURN_IF_ERROR(source->read(0, &header_size, sizeof header_size));
  if (header_size > kMaxSafetensorsHeader)
    return data_error(str_cat("not a safetensors file: its header would take ", header_size,
                              " bytes, at most ", kMaxSafetensorsHeader, " are accepted"));
  if (header_size > source->size() - sizeof header_size)
    return data_error(
        str_cat("cut short: a header of ", header_size, " bytes, the file has ", source->size()));
  const uint64_t data_begin = sizeof header_size + header_size;
  HeaderReader in(*source, sizeof header_size, data_begin);
  if (in.peek() != '{') return in.failed("does not begin with '{'");
  AERIE_RETURN_IF_ERROR(in.expect('{'));
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  bool has_metadata = false;
  if (!in.accept('}')) {
    do {
      AERIE_ASSIGN_OR_RETURN(std::string name, in.string());
      AERIE_RETURN_IF_ERROR(in.expect(':'));
      if (name == "__metadata__") {
        if (has_metadata) return in.error("__metadata__ appears twice");
        has_metadata = true;
        AERIE_ASSIGN_OR_RETURN(metadata, parse_metadata(in));
        continue;
      }
      if (entries.size() == kMaxTensors)
        return in.error(str_cat("more than ", kMaxTensors, " tensors"));
      AERIE_ASSIGN_OR_RETURN(Entry entry, parse_tensor(in, std::move(name)));
      entries.push_back(std::move(entry));
    } while (in.accept(','));
    AERIE_RETURN_IF_ERROR(in.expect('}'));
  }
  in.skip_blanks();
  if (in.peek() >= 0) return in.error("something follows the header's end");
  if (in.position() != data_begin) return in.failed("cannot be read");

  // Sorted by position the tensors must tile the data exactly.
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->info.offset, a->end) < std::pair(b->info.offset, b->end);
  });
  uint64_t at = 0;
  for (const Entry* entry : order) {
    if (entry->info.offset != at)
      return data_error(str_cat("tensor ", quoted(entry->info.name), " begins at ",
                                entry->info.offset, " where ", at, " was expected: tensors ",
                                entry->info.offset < at ? "overlap" : "leave a hole"));
    at = entry->end;
  }
  const uint64_t data_size = source->size() - data_begin;
  if (at != data_size)
    return data_error(str_cat("the tensors take ", at, " bytes, the file holds ", data_size))
        .with_hint(at > data_size ? "the file was probably cut short" : "");
  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) tensors.push_back(std::move(entry.info));
  AERIE_ASSIGN_OR_RETURN(SourcePtr data,
                         slice_source(source, data_begin, data_size, source->name()));
  AERIE_ASSIGN_OR_RETURN(
      TensorArchive archive,
      TensorArchive::make(source->name(), {std::move(data)}, std::move(tensors)));
  archive.set_text_metadata(std::move(metadata));
  return archive;
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (byte < 0x20) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\u%04x", byte);
      out += buffer;
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

}  // namespace

Result<TensorArchive> read_safetensors(SourcePtr source) {
  auto archive = parse(source);
  if (archive.ok() || !archive.status().context().empty()) return archive;
  return archive.status().with_context(source->name());
}

Result<TensorArchive> read_safetensors(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(SourcePtr source, file_source(env, path));
  return read_safetensors(std::move(source));
}

Status write_safetensors(const Sink& sink, const std::vector<OutTensor>& tensors,
                         const std::map<std::string, std::string>& metadata,
                         const ProgressFn& progress) {
  AERIE_RETURN_IF_ERROR(check_out_tensors(tensors));
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return dtype_size(tensors[a].dtype) > dtype_size(tensors[b].dtype);
  });
  std::vector<uint64_t> begin(tensors.size());
  uint64_t total = 0;
  for (const size_t i : order) {
    begin[i] = total;
    total += tensors[i].nbytes();
  }
  std::string header = "{";
  const auto comma = [&] {
    if (header.size() > 1) header.push_back(',');
  };
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (!is_utf8(key) || !is_utf8(value))
        return invalid_argument(str_cat("metadata ", quoted(key), " is not UTF-8"));
      if (header.back() != '{') header.push_back(',');
      append_json_string(header, key);
      header.push_back(':');
      append_json_string(header, value);
    }
    header.push_back('}');
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OutTensor& tensor = tensors[i];
    const char* dtype = dtype_safetensors(tensor.dtype);
    if (dtype == nullptr || tensor.name == "__metadata__")
      return unsupported(str_cat("safetensors cannot hold tensor ", quoted(tensor.name), " of ",
                                 dtype_name(tensor.dtype)));
    comma();
    append_json_string(header, tensor.name);
    header += str_cat(":{\"dtype\":\"", dtype, "\",\"shape\":[");
    for (size_t d = 0; d < tensor.shape.size(); ++d)
      header += str_cat(d == 0 ? "" : ",", tensor.shape[d]);
    header += str_cat("],\"data_offsets\":[", begin[i], ",", begin[i] + tensor.nbytes(), "]}");
  }
  header.push_back('}');
  header.append((8 - header.size() % 8) % 8, ' ');
  if (header.size() > kMaxSafetensorsHeader)
    return unsupported(str_cat("a safetensors header of ", header.size(), " bytes is too large"));
  const uint64_t header_size = header.size();
  std::string start(reinterpret_cast<const char*>(&header_size), sizeof header_size);
  AERIE_RETURN_IF_ERROR(sink(start + header));
  uint64_t done = 0;
  for (const size_t i : order) {
    const Status status = tensors[i].emit(sink);
    if (!status.ok()) return status.with_context(str_cat("tensor ", quoted(tensors[i].name)));
    done += tensors[i].nbytes();
    if (progress) progress(done, total);
  }
  return ok_status();
}

Status write_safetensors(Env& env, const std::string& path, const std::vector<OutTensor>& tensors,
                         const std::map<std::string, std::string>& metadata,
                         const ProgressFn& progress) {
  return write_atomically(env, path, [&](const Sink& sink) {
    return write_safetensors(sink, tensors, metadata, progress);
  });
}

}  // namespace aerie::archive
