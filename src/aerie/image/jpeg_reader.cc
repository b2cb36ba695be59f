#include <algorithm>

#include "aerie/image/jpeg.h"
#include "aerie/image/jpeg_error.h"

namespace aerie::image {
namespace {

// Pillow's conversion of CMYK, whose values Adobe stores inverted.
void cmyk_to_rgb(const uint8_t* in, int width, uint8_t* out) {
  for (int x = 0; x < width; ++x, in += 4, out += 3) {
    const int white = in[3];  // 255 - key
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - in[c]) * white + 128;
      out[c] = static_cast<uint8_t>(white - ((product + (product >> 8)) >> 8));
    }
  }
}

// Whether the end-of-image marker stands somewhere in what follows the header. Entropy-coded data
// cannot look like one. Usually these are the last two bytes.
bool has_end(const uint8_t* data, size_t size) {
  for (size_t i = size; i-- > 1;)
    if (data[i] == JPEG_EOI && data[i - 1] == 0xFF) return true;
  return false;
}

}  // namespace

struct JpegReader::Impl {
  explicit Impl(const JpegLimits& given) : limits(given) {}
  ~Impl() {
    if (created) jpeg_destroy_decompress(&cinfo);
  }

  JpegLimits limits;
  JpegErrors errors;
  jpeg_decompress_struct cinfo{};
  jpeg_progress_mgr progress{};
  bool created = false;
  bool has_picture = false;
  bool header_read = false;  // and nothing after it
  bool too_many_scans = false;
  std::span<const uint8_t> bytes;
  JpegInfo info;
  std::vector<uint8_t> rows;  // kRowsAtOnce rows
  std::vector<uint8_t> cmyk;  // one row

  static void check_scans(j_common_ptr common) {
    auto* self = static_cast<Impl*>(common->client_data);
    if (self->cinfo.input_scan_number <= self->limits.max_scans) return;
    self->too_many_scans = true;
    ERREXIT(&self->cinfo, JERR_BAD_PROGRESSION);
  }

  // The functions below run libjpeg and are left by a jump when it fails; they hold no objects.
  bool read_header() {
    header_read = false;
    too_many_scans = false;
    if (setjmp(errors.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
    // Anew for every picture: tables of the one before would stand in for those that a damaged file
    // lacks, and its pixels would depend on what this thread has read before.
    if (created) jpeg_destroy_decompress(&cinfo);
    cinfo.err = &errors.manager;
    jpeg_create_decompress(&cinfo);
    created = true;
    cinfo.client_data = this;
    progress.progress_monitor = check_scans;
    cinfo.progress = &progress;
    cinfo.mem->max_memory_to_use = static_cast<long>(limits.max_working_bytes);
    jpeg_mem_src(&cinfo, bytes.data(), bytes.size());
    jpeg_read_header(&cinfo, TRUE);
    header_read = true;
    return true;
  }

  bool start(int first, int denominator) {
    if (setjmp(errors.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
    header_read = false;
    cinfo.scale_num = 1;
    cinfo.scale_denom = static_cast<unsigned>(denominator);
    cinfo.out_color_space = info.components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&cinfo);
    skip_to(first);
    return true;
  }
  void skip_to(int first);

  // Decodes `count` rows to `out`.
  bool decode(int count, uint8_t* out, size_t stride) {
    if (setjmp(errors.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
    for (int done = 0; done < count;) {
      uint8_t* target[kRowsAtOnce];
      const int ask = std::min(count - done, info.components == 4 ? 1 : kRowsAtOnce);
      for (int k = 0; k < ask; ++k) target[k] = out + static_cast<size_t>(done + k) * stride;
      if (info.components == 4) target[0] = cmyk.data();
      const int got =
          static_cast<int>(jpeg_read_scanlines(&cinfo, target, static_cast<unsigned>(ask)));
      if (info.components == 4 && got == 1)
        cmyk_to_rgb(cmyk.data(), static_cast<int>(cinfo.output_width),
                    out + static_cast<size_t>(done) * stride);
      done += got;
    }
    return true;
  }

  // Deliberately 16 bytes off: to rows aligned to 32 bytes libjpeg-turbo writes around the cache,
  // and whoever takes the row has to fetch it from memory again (a seventh of the time of a
  // picture).
  uint8_t* row_buffer(size_t size) {
    if (rows.size() < size + 128) rows.resize(size + 128);
    return rows.data() + (64 - reinterpret_cast<uintptr_t>(rows.data()) % 64) + 16;
  }

  Status failure() {
    Status status = too_many_scans ? data_error(str_cat("JPEG: a progressive picture of more than ",
                                                        limits.max_scans, " scans"))
                                         .with_hint("save it again: encoders make about ten")
                                   : errors.status();
    if (created) jpeg_abort_decompress(&cinfo);
    return status;
  }
};

// Colour rows are interpolated from neighbours above and below; libjpeg-turbo's way of skipping
// keeps them (jpeg_test compares every first row). Whatever it does not skip is decoded and
// dropped.
void JpegReader::Impl::skip_to(int first) {
  if (first == 0) return;
  jpeg_skip_scanlines(&cinfo, static_cast<unsigned>(first));
  uint8_t* row = info.components == 4 ? cmyk.data() : rows.data();
  while (static_cast<int>(cinfo.output_scanline) < first) jpeg_read_scanlines(&cinfo, &row, 1);
}

JpegReader::JpegReader(const JpegLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
JpegReader::~JpegReader() = default;

Result<JpegInfo> JpegReader::open(std::span<const uint8_t> bytes) {
  Impl& my = *impl_;
  my.has_picture = false;
  my.bytes = bytes;
  if (bytes.empty()) return data_error("not a JPEG file: it is empty");
  if (!my.read_header()) return my.failure();
  const auto& cinfo = my.cinfo;
  const JpegInfo info{static_cast<int>(cinfo.image_width), static_cast<int>(cinfo.image_height),
                      cinfo.num_components, cinfo.progressive_mode != 0};
  if (int64_t{info.width} * info.height > my.limits.max_pixels)
    return data_error(str_cat("JPEG: a picture of ", info.width, " x ", info.height,
                              " pixels; at most ", my.limits.max_pixels, " are read"))
        .with_hint("make it smaller");
  if (info.components != 1 && info.components != 3 && info.components != 4)
    return unsupported(str_cat("JPEG: ", info.components, " colour components"))
        .with_hint("save it as grey, colour or CMYK");
  // Told at once, not only by those who read down to where the data stops.
  if (!has_end(cinfo.src->next_input_byte, cinfo.src->bytes_in_buffer)) return jpeg_truncated();
  my.info = info;
  my.has_picture = true;
  return info;
}

int JpegReader::scaled_width(int denominator) const {
  return (impl_->info.width + denominator - 1) / denominator;
}
int JpegReader::scaled_height(int denominator) const {
  return (impl_->info.height + denominator - 1) / denominator;
}

Status JpegReader::for_rows(int first, int end, int denominator, const RowSink& sink) {
  Impl& my = *impl_;
  AERIE_CHECK(my.has_picture, "no picture is open");
  AERIE_CHECK(denominator == 1 || denominator == 2 || denominator == 4 || denominator == 8,
              "a picture at 1/", denominator);
  const int width = scaled_width(denominator), height = scaled_height(denominator);
  AERIE_CHECK(0 <= first && first <= end && end <= height, "rows ", first, " to ", end, " of ",
              height);
  if (first == end) return ok_status();
  const size_t stride = (static_cast<size_t>(width) * 3 + kRowSlack + 63) / 64 * 64;
  uint8_t* const pixels = my.row_buffer(stride * kRowsAtOnce);
  if (my.info.components == 4 && my.cmyk.size() < static_cast<size_t>(width) * 4)
    my.cmyk.resize(static_cast<size_t>(width) * 4);
  if (!my.header_read && !my.read_header()) return my.failure();
  if (!my.start(first, denominator)) return my.failure();
  const uint8_t* rows[kRowsAtOnce];
  for (int k = 0; k < kRowsAtOnce; ++k) rows[k] = pixels + k * stride;
  for (int row = first; row < end;) {
    const int count = std::min(kRowsAtOnce, end - row);
    if (!my.decode(count, pixels, stride)) return my.failure();
    sink(rows, count);
    row += count;
  }
  return ok_status();
}

Status JpegReader::read_rows(int first, int end, int denominator, Image& out) {
  const int width = scaled_width(denominator);
  out.resize(width, end - first, 3);
  int done = 0;
  return for_rows(first, end, denominator, [&](const uint8_t* const* rows, int count) {
    for (int k = 0; k < count; ++k) std::copy_n(rows[k], size_t{3} * width, out.row(done++));
  });
}

}  // namespace aerie::image
