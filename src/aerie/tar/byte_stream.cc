#include "aerie/tar/byte_stream.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "aerie/tar/unpack.h"

namespace aerie::tar {
namespace {

// Headers of members far apart cost one short read each; once reading goes on without gaps, the
// read-ahead grows.
constexpr size_t kShortRead = 4096;
constexpr size_t kLongRead = 256 * 1024;

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(std::unique_ptr<RawInput> input) : input_(std::move(input)) {}
  Result<size_t> read(uint8_t* out, size_t n) override { return input_->read(out, n); }
  Result<uint64_t> skip(uint64_t n) override {
    const uint64_t now = std::min(n, input_->size() - input_->position());
    input_->seek(input_->position() + now);
    return now;
  }
  uint64_t position() const override { return input_->position(); }
  uint64_t length() const override { return input_->size(); }

 private:
  std::unique_ptr<RawInput> input_;
};

}  // namespace

Result<std::unique_ptr<RawInput>> RawInput::open(const std::string& path, Env* env) {
  std::unique_ptr<RawInput> input(new RawInput());
  AERIE_ASSIGN_OR_RETURN(input->file_,
                         (env != nullptr ? *env : Env::real()).open_random_access(path));
  input->size_ = input->file_->size();
  return input;
}

Status RawInput::fill() {
  const bool goes_on = buffer_size_ > 0 && position_ == buffer_begin_ + buffer_size_;
  const size_t want = goes_on ? kLongRead : kShortRead;
  if (buffer_.size() < want) buffer_.resize(want);
  AERIE_ASSIGN_OR_RETURN(buffer_size_, file_->read_at(position_, buffer_.data(), want));
  buffer_begin_ = position_;
  return ok_status();
}

Result<std::span<const uint8_t>> RawInput::next_piece() {
  if (position_ >= size_) return std::span<const uint8_t>();
  if (file_ == nullptr) {
    const std::span<const uint8_t> rest = memory_.subspan(position_);
    position_ = size_;
    return rest;
  }
  if (position_ < buffer_begin_ || position_ >= buffer_begin_ + buffer_size_)
    AERIE_RETURN_IF_ERROR(fill());
  const size_t from = position_ - buffer_begin_;
  const std::span<const uint8_t> piece(buffer_.data() + from, buffer_size_ - from);
  position_ += piece.size();
  return piece;
}

Result<size_t> RawInput::read(uint8_t* out, size_t n) {
  size_t done = 0;
  while (done < n && position_ < size_) {
    const bool buffered =
        file_ != nullptr && position_ >= buffer_begin_ && position_ < buffer_begin_ + buffer_size_;
    if (file_ != nullptr && !buffered && n - done >= kLongRead) {
      AERIE_ASSIGN_OR_RETURN(const size_t got, file_->read_at(position_, out + done, n - done));
      if (got == 0) break;
      done += got;
      position_ += got;
      continue;
    }
    const uint64_t before = position_;
    AERIE_ASSIGN_OR_RETURN(const std::span<const uint8_t> piece, next_piece());
    if (piece.empty()) break;
    const size_t take = std::min(piece.size(), n - done);
    std::memcpy(out + done, piece.data(), take);
    done += take;
    position_ = before + take;
  }
  return done;
}

Result<uint64_t> ByteStream::skip(uint64_t n) {
  std::array<uint8_t, 16384> waste;
  uint64_t done = 0;
  while (done < n) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(waste.size(), n - done));
    AERIE_ASSIGN_OR_RETURN(const size_t got, read(waste.data(), want));
    done += got;
    if (got < want) break;
  }
  return done;
}

Compression sniff_compression(const uint8_t* head, size_t size) {
  if (size >= 2 && head[0] == 0x1F && head[1] == 0x8B) return Compression::kGzip;
  if (size >= 4 && std::memcmp(head, "BZh", 3) == 0 && head[3] >= '1' && head[3] <= '9')
    return Compression::kBzip2;
  if (size >= 6 && std::memcmp(head,
                               "\xFD"
                               "7zXZ",
                               6) == 0)
    return Compression::kXz;
  return Compression::kNone;
}

const char* compression_name(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kGzip:
      return "gzip";
    case Compression::kBzip2:
      return "bzip2";
    case Compression::kXz:
      return "xz";
  }
  return "unknown";
}

Result<std::unique_ptr<ByteStream>> open_byte_stream(std::unique_ptr<RawInput> input,
                                                     const TarOptions& options,
                                                     Compression* compression,
                                                     std::vector<GzipPoint>* points) {
  uint8_t head[6] = {};
  AERIE_ASSIGN_OR_RETURN(const size_t got, input->read(head, sizeof(head)));
  input->seek(0);
  *compression = sniff_compression(head, got);
  switch (*compression) {
    case Compression::kGzip:
      return new_gzip_stream(std::move(input), options, nullptr, points);
    case Compression::kBzip2:
      return new_bzip2_stream(std::move(input), options);
    case Compression::kXz:
      return new_xz_stream(std::move(input), options);
    case Compression::kNone:
      break;
  }
  return std::unique_ptr<ByteStream>(std::make_unique<PlainStream>(std::move(input)));
}

Result<std::unique_ptr<ByteStream>> open_gzip_at(std::unique_ptr<RawInput> input,
                                                 const TarOptions& options,
                                                 const GzipPoint& point) {
  return new_gzip_stream(std::move(input), options, &point, nullptr);
}

}  // namespace aerie::tar
