// bzip2 and xz: rare for audio, read from front to back only.
#include <algorithm>

#include "aerie/tar/unpack.h"

#ifdef AERIE_HAVE_BZIP2
#include <bzlib.h>
#endif
#ifdef AERIE_HAVE_LZMA
#include <lzma.h>
#endif

namespace aerie::tar {
namespace {

[[maybe_unused]] Status not_built(const char* name, const char* package) {
  return unsupported(str_cat(name, " archives need ", package, ", which this build lacks"))
      .with_hint("unpack the archive, or recompress it with gzip");
}

#ifdef AERIE_HAVE_BZIP2
class Bzip2Stream final : public ByteStream {
 public:
  Bzip2Stream(std::unique_ptr<RawInput> input, uint64_t limit)
      : input_(std::move(input)), limit_(limit) {}
  ~Bzip2Stream() override {
    if (started_) BZ2_bzDecompressEnd(&z_);
  }

  Result<size_t> read(uint8_t* out, size_t n) override {
    size_t done = 0;
    while (done < n && !ended_) {
      if (z_.avail_in == 0) {
        AERIE_ASSIGN_OR_RETURN(piece_, input_->next_piece());
        if (piece_.empty()) {
          if (!started_ && position_ > 0) {
            ended_ = true;
            break;
          }
          return data_error("bzip2 archive ends early");
        }
        const size_t take = std::min<size_t>(piece_.size(), 1u << 30);
        input_->seek(input_->position() - (piece_.size() - take));
        z_.next_in = const_cast<char*>(reinterpret_cast<const char*>(piece_.data()));
        z_.avail_in = static_cast<unsigned>(take);
      }
      if (!started_) {
        // A further stream follows, or padding that is not ours.
        if (position_ > 0 && *z_.next_in != 'B') {
          ended_ = true;
          break;
        }
        char* const in = z_.next_in;
        const unsigned left = z_.avail_in;
        z_ = bz_stream{};
        if (BZ2_bzDecompressInit(&z_, 0, 0) != BZ_OK)
          return out_of_memory("no memory to unpack bzip2");
        z_.next_in = in;
        z_.avail_in = left;
        started_ = true;
      }
      z_.next_out = reinterpret_cast<char*>(out + done);
      z_.avail_out = static_cast<unsigned>(std::min<size_t>(n - done, 1u << 30));
      const unsigned before = z_.avail_out;
      const int code = BZ2_bzDecompress(&z_);
      const unsigned made = before - z_.avail_out;
      done += made;
      position_ += made;
      if (position_ > limit_) return unpacks_to_too_much(limit_);
      if (code == BZ_STREAM_END) {
        BZ2_bzDecompressEnd(&z_);
        started_ = false;
        // An empty stream must not count as the first: remember that something was read.
        if (position_ == 0) return data_error("empty bzip2 archive");
      } else if (code != BZ_OK) {
        return data_error(str_cat("damaged bzip2 data near byte ", position_));
      }
    }
    return done;
  }
  uint64_t position() const override { return position_; }

 private:
  std::unique_ptr<RawInput> input_;
  const uint64_t limit_;
  std::span<const uint8_t> piece_;
  bz_stream z_{};
  bool started_ = false;
  bool ended_ = false;
  uint64_t position_ = 0;
};
#endif

#ifdef AERIE_HAVE_LZMA
class XzStream final : public ByteStream {
 public:
  XzStream(std::unique_ptr<RawInput> input, uint64_t limit)
      : input_(std::move(input)), limit_(limit) {}
  ~XzStream() override { lzma_end(&z_); }

  Status start() {
    // 256 MiB covers every preset (-9 needs 65 MiB); a header that asks for more is refused.
    if (lzma_stream_decoder(&z_, uint64_t{256} << 20, LZMA_CONCATENATED) != LZMA_OK)
      return out_of_memory("no memory to unpack xz");
    return ok_status();
  }

  Result<size_t> read(uint8_t* out, size_t n) override {
    size_t done = 0;
    while (done < n && !ended_) {
      if (z_.avail_in == 0 && !input_done_) {
        AERIE_ASSIGN_OR_RETURN(const std::span<const uint8_t> piece, input_->next_piece());
        input_done_ = piece.empty();
        z_.next_in = piece.data();
        z_.avail_in = piece.size();
      }
      z_.next_out = out + done;
      z_.avail_out = n - done;
      const size_t before = z_.avail_out;
      const lzma_ret code = lzma_code(&z_, input_done_ ? LZMA_FINISH : LZMA_RUN);
      const size_t made = before - z_.avail_out;
      done += made;
      position_ += made;
      if (position_ > limit_) return unpacks_to_too_much(limit_);
      if (code == LZMA_STREAM_END) {
        ended_ = true;
      } else if (code == LZMA_MEMLIMIT_ERROR) {
        return data_error("xz archive asks for more than 256 MiB to unpack");
      } else if (code != LZMA_OK) {
        return data_error(
            str_cat(input_done_ ? "xz archive ends early" : "damaged xz data near byte ",
                    input_done_ ? "" : str_cat(position_)));
      }
    }
    return done;
  }
  uint64_t position() const override { return position_; }

 private:
  std::unique_ptr<RawInput> input_;
  const uint64_t limit_;
  lzma_stream z_ = LZMA_STREAM_INIT;
  bool input_done_ = false;
  bool ended_ = false;
  uint64_t position_ = 0;
};
#endif

}  // namespace

Result<std::unique_ptr<ByteStream>> new_bzip2_stream([[maybe_unused]] std::unique_ptr<RawInput> in,
                                                     [[maybe_unused]] const TarOptions& options) {
#ifdef AERIE_HAVE_BZIP2
  const uint64_t limit = max_unpacked_bytes(in->size(), options);
  return std::unique_ptr<ByteStream>(std::make_unique<Bzip2Stream>(std::move(in), limit));
#else
  return not_built("bzip2", "libbz2");
#endif
}

Result<std::unique_ptr<ByteStream>> new_xz_stream([[maybe_unused]] std::unique_ptr<RawInput> in,
                                                  [[maybe_unused]] const TarOptions& options) {
#ifdef AERIE_HAVE_LZMA
  const uint64_t limit = max_unpacked_bytes(in->size(), options);
  auto stream = std::make_unique<XzStream>(std::move(in), limit);
  AERIE_RETURN_IF_ERROR(stream->start());
  return std::unique_ptr<ByteStream>(std::move(stream));
#else
  return not_built("xz", "liblzma");
#endif
}

}  // namespace aerie::tar
