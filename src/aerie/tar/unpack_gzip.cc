// gzip, with access points: places between deflate blocks where inflating can start again, given
// the 32 KiB of output before them. A tar of 1 GiB has about 256 of them.
#include <algorithm>
#include <cstring>

#include <zlib.h>

#include "aerie/tar/unpack.h"

namespace aerie::tar {

uint64_t max_unpacked_bytes(uint64_t compressed, const TarOptions& options) {
  constexpr uint64_t kAllowance = uint64_t{16} << 20;
  uint64_t limit = 0;
  if (__builtin_mul_overflow(compressed, options.max_expansion, &limit) ||
      __builtin_add_overflow(limit, kAllowance, &limit))
    return UINT64_MAX;
  return limit;
}

Status unpacks_to_too_much(uint64_t limit) {
  return data_error(str_cat("unpacks to more than ", limit,
                            " bytes: damaged, or made to exhaust memory or time"));
}

namespace {

class GzipStream final : public ByteStream {
 public:
  GzipStream(std::unique_ptr<RawInput> input, uint64_t limit, std::vector<GzipPoint>* points)
      : input_(std::move(input)), limit_(limit), points_(points) {}
  ~GzipStream() override {
    if (started_) inflateEnd(&z_);
  }

  Status start(const GzipPoint* from) {
    // 15 + 16: gzip wrapper, whose checksum and length zlib verifies; -15: bare deflate.
    if (inflateInit2(&z_, from != nullptr ? -15 : 15 + 16) != Z_OK)
      return out_of_memory("no memory to inflate");
    started_ = true;
    if (from == nullptr) return ok_status();
    raw_ = true;
    position_ = from->out_offset;
    if (from->bits > 7 || from->in_offset > input_->size() ||
        (from->bits > 0 && from->in_offset == 0))
      return data_error("bad access point in the index");
    if (from->bits > 0) {
      input_->seek(from->in_offset - 1);
      uint8_t byte = 0;
      AERIE_ASSIGN_OR_RETURN(const size_t got, input_->read(&byte, 1));
      if (got != 1) return data_error("gzip archive ends early");
      inflatePrime(&z_, from->bits, byte >> (8 - from->bits));
    } else {
      input_->seek(from->in_offset);
    }
    if (!from->window.empty() &&
        inflateSetDictionary(&z_, from->window.data(), static_cast<uInt>(from->window.size())) !=
            Z_OK)
      return data_error("bad access point in the index");
    return ok_status();
  }

  Result<size_t> read(uint8_t* out, size_t n) override {
    size_t done = 0;
    while (done < n && !ended_) {
      if (z_.avail_in == 0) {
        AERIE_ASSIGN_OR_RETURN(const std::span<const uint8_t> piece, input_->next_piece());
        if (piece.empty()) {
          if (between_members_) {
            ended_ = true;
            break;
          }
          return data_error("gzip archive ends early");
        }
        const size_t take = std::min<size_t>(piece.size(), 1u << 30);
        input_->seek(input_->position() - (piece.size() - take));
        z_.next_in = const_cast<Bytef*>(piece.data());
        z_.avail_in = static_cast<uInt>(take);
      }
      if (trailer_left_ > 0) {
        const uInt take = std::min<uInt>(z_.avail_in, trailer_left_);
        z_.next_in += take;
        z_.avail_in -= take;
        trailer_left_ -= take;
        continue;
      }
      if (between_members_) {
        // Zero padding or foreign bytes behind the last member are not part of the archive.
        if (z_.next_in[0] != 0x1F) {
          ended_ = true;
          break;
        }
        inflateReset2(&z_, 15 + 16);
        raw_ = false;
        between_members_ = false;
      }
      z_.next_out = out + done;
      z_.avail_out = static_cast<uInt>(std::min<size_t>(n - done, 1u << 30));
      const uInt before = z_.avail_out;
      const int code = inflate(&z_, points_ != nullptr ? Z_BLOCK : Z_NO_FLUSH);
      const uInt made = before - z_.avail_out;
      done += made;
      position_ += made;
      if (position_ > limit_) return unpacks_to_too_much(limit_);
      if (code == Z_STREAM_END) {
        between_members_ = true;
        // Bare inflating leaves checksum and length (8 bytes) standing.
        trailer_left_ = raw_ ? 8 : 0;
        continue;
      }
      if (code != Z_OK && code != Z_BUF_ERROR)
        return data_error(str_cat("damaged gzip data near byte ", position_, " (",
                                  z_.msg != nullptr ? z_.msg : zError(code), ")"));
      if (points_ != nullptr) maybe_add_point();
    }
    return done;
  }
  uint64_t position() const override { return position_; }

 private:
  void maybe_add_point() {
    // data_type: 128 = just behind a block (or the header), 64 = it was the last of its member.
    if ((z_.data_type & 128) == 0 || (z_.data_type & 64) != 0) return;
    if (position_ < next_point_) return;
    GzipPoint point;
    point.out_offset = position_;
    point.in_offset = input_->position() - z_.avail_in;
    point.bits = static_cast<uint8_t>(z_.data_type & 7);
    uInt size = 0;
    point.window.resize(32768);
    if (inflateGetDictionary(&z_, point.window.data(), &size) != Z_OK) return;
    point.window.resize(size);
    points_->push_back(std::move(point));
    next_point_ = position_ + kGzipPointSpan;
  }

  std::unique_ptr<RawInput> input_;
  const uint64_t limit_;
  std::vector<GzipPoint>* points_;
  uint64_t next_point_ = kGzipPointSpan;
  z_stream z_{};
  bool started_ = false;
  bool raw_ = false;
  bool between_members_ = false;
  bool ended_ = false;
  uInt trailer_left_ = 0;
  uint64_t position_ = 0;
};

}  // namespace

Result<std::unique_ptr<ByteStream>> new_gzip_stream(std::unique_ptr<RawInput> input,
                                                    const TarOptions& options,
                                                    const GzipPoint* from,
                                                    std::vector<GzipPoint>* points) {
  const uint64_t limit = max_unpacked_bytes(input->size(), options);
  auto stream = std::make_unique<GzipStream>(std::move(input), limit, points);
  AERIE_RETURN_IF_ERROR(stream->start(from));
  return std::unique_ptr<ByteStream>(std::move(stream));
}

}  // namespace aerie::tar
