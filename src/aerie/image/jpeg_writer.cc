#include <cstdlib>

#include "aerie/image/jpeg.h"
#include "aerie/image/jpeg_error.h"

namespace aerie::image {
namespace {

// Runs libjpeg and is left by a jump when it fails; holds no objects.
bool compress(jpeg_compress_struct& cinfo, JpegErrors& errors, const ImageView& picture,
              const JpegWriteOptions& options, unsigned char** buffer, unsigned long* size) {
  if (setjmp(errors.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
  jpeg_create_compress(&cinfo);
  jpeg_mem_dest(&cinfo, buffer, size);
  cinfo.image_width = static_cast<unsigned>(picture.width);
  cinfo.image_height = static_cast<unsigned>(picture.height);
  cinfo.input_components = picture.channels;
  cinfo.in_color_space = picture.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&cinfo);
  jpeg_set_quality(&cinfo, options.quality, TRUE);
  if (picture.channels == 3) {
    cinfo.comp_info[0].h_samp_factor = options.subsampling == ChromaSubsampling::k444 ? 1 : 2;
    cinfo.comp_info[0].v_samp_factor = options.subsampling == ChromaSubsampling::k420 ? 2 : 1;
  }
  cinfo.restart_in_rows = options.restart_rows;
  if (options.progressive) jpeg_simple_progression(&cinfo);
  jpeg_start_compress(&cinfo, TRUE);
  while (cinfo.next_scanline < cinfo.image_height) {
    // libjpeg does not write to the row.
    auto* row = const_cast<uint8_t*>(picture.row(static_cast<int>(cinfo.next_scanline)));
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  return true;
}

}  // namespace

Result<std::vector<uint8_t>> write_jpeg(const ImageView& picture, const JpegWriteOptions& options) {
  if (picture.channels != 1 && picture.channels != 3)
    return invalid_argument(str_cat("a JPEG picture of ", picture.channels, " channels"))
        .with_hint("one (grey) or three");
  if (picture.width < 1 || picture.height < 1 || picture.width > JPEG_MAX_DIMENSION ||
      picture.height > JPEG_MAX_DIMENSION)
    return invalid_argument(str_cat("a JPEG picture of ", picture.width, " x ", picture.height))
        .with_hint(str_cat("1 to ", JPEG_MAX_DIMENSION, " pixels a side"));
  if (options.quality < 1 || options.quality > 100)
    return invalid_argument(str_cat("JPEG quality ", options.quality)).with_hint("1 to 100");
  jpeg_compress_struct cinfo{};
  JpegErrors errors;
  cinfo.err = &errors.manager;
  unsigned char* buffer = nullptr;
  unsigned long size = 0;
  const bool done = compress(cinfo, errors, picture, options, &buffer, &size);
  std::vector<uint8_t> bytes;
  if (done) bytes.assign(buffer, buffer + size);
  jpeg_destroy_compress(&cinfo);
  std::free(buffer);
  if (!done) return errors.status();
  return bytes;
}

}  // namespace aerie::image
