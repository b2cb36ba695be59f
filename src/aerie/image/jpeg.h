// JPEG in and out, by libjpeg(-turbo).
//
// Decoding gives the pixels that Pillow's Image.open(...).convert("RGB") gives: accurate inverse
// DCT, smooth upsampling of colour, grey repeated over three channels, CMYK and YCCK with Adobe's
// inverted values turned into RGB, the orientation of EXIF ignored. Parts of a picture are equal
// bit by bit to the same rows of the whole.
//
// Corrupt data is an error here (Pillow lets some of it pass): a damaged picture never becomes a
// sample. Of what lies below the last row that was asked for only the end of the file is looked at:
// truncated files are refused whichever rows are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/image/image.h"

namespace aerie::image {

struct JpegInfo {
  int width = 0, height = 0;
  int components = 3;  // 1 grey, 3 colour, 4 CMYK or YCCK
  bool progressive = false;
};

// Files come from anywhere: what a picture may cost is bounded before anything is allocated.
struct JpegLimits {
  int64_t max_pixels = int64_t{1} << 26;         // 8192 x 8192
  int64_t max_working_bytes = int64_t{1} << 28;  // coefficients of progressive pictures, 256 MiB
  int max_scans = 100;                           // of a progressive picture; usual are about ten
};

// One thread at a time; keeps its memory from picture to picture.
class JpegReader final {
 public:
  explicit JpegReader(const JpegLimits& limits = {});
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Reads the header. `bytes` must live as long as the picture is read. An error leaves no picture
  // open.
  Result<JpegInfo> open(std::span<const uint8_t> bytes);

  // Width and height of the open picture decoded at 1/denominator (1, 2, 4 or 8): rounded up.
  int scaled_width(int denominator) const;
  int scaled_height(int denominator) const;

  // Rows [first, end) of the open picture, decoded at 1/denominator, three channels. May be called
  // again, with other rows. Rows above `first` are only parsed, those from `end` on not even that.
  Status read_rows(int first, int end, int denominator, Image& out);

  // The same rows, handed over as they are decoded, at most kRowsAtOnce at a time and from the top.
  // Each row is followed by kRowSlack bytes that may be read (their values mean nothing).
  static constexpr int kRowsAtOnce = 8;
  static constexpr int kRowSlack = 256;
  using RowSink = std::function<void(const uint8_t* const* rows, int count)>;
  Status for_rows(int first, int end, int denominator, const RowSink& sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class ChromaSubsampling { k420, k422, k444 };

struct JpegWriteOptions {
  int quality = 90;  // 1 to 100
  ChromaSubsampling subsampling = ChromaSubsampling::k420;
  bool progressive = false;
  int restart_rows = 0;  // a restart marker after so many rows of blocks; 0: none
};

// One (grey) or three channels, 1 to 65500 pixels a side.
Result<std::vector<uint8_t>> write_jpeg(const ImageView& picture,
                                        const JpegWriteOptions& options = {});

}  // namespace aerie::image
