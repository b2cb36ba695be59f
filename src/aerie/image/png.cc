#include "aerie/image/png.h"

#include <csetjmp>
#include <cstring>

#include <png.h>

#include "aerie/base/printable.h"

namespace aerie::image {
namespace {

// What libpng's callbacks see. Errors jump back to the setjmp of the function that called libpng;
// no object that needs destroying is made between the two.
struct PngState {
  std::jmp_buf jump;
  char text[128] = {};
  std::span<const uint8_t> input;
  std::vector<uint8_t>* output = nullptr;
  bool no_memory = false;
};

[[noreturn]] void on_error(png_structp png, const char* message) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::strncpy(state->text, message, sizeof(state->text) - 1);
  std::longjmp(state->jump, 1);  // NOLINT(cert-err52-cpp)
}
void on_warning(png_structp, const char*) {}

void on_read(png_structp png, png_bytep to, size_t size) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (size > state->input.size()) png_error(png, "the file ends before the picture does");
  std::memcpy(to, state->input.data(), size);
  state->input = state->input.subspan(size);
}

// No exception may pass through libpng.
void on_write(png_structp png, png_bytep from, size_t size) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  try {
    state->output->insert(state->output->end(), from, from + size);
  } catch (const std::bad_alloc&) {
    state->no_memory = true;
  }
  if (state->no_memory) png_error(png, "no memory");
}
void on_flush(png_structp) {}

Status png_failure(const PngState& state) {
  if (state.no_memory) return out_of_memory("PNG: no memory");
  return data_error(str_cat("PNG: ", printable(state.text)));
}

bool write_all(PngState& state, png_structp png, png_infop info, const ImageView& picture,
               int compression) {
  if (setjmp(state.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
  constexpr int kColorTypes[] = {PNG_COLOR_TYPE_GRAY, 0, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
  png_set_write_fn(png, &state, on_write, on_flush);
  png_set_compression_level(png, compression);
  png_set_IHDR(png, info, static_cast<unsigned>(picture.width),
               static_cast<unsigned>(picture.height), 8, kColorTypes[picture.channels - 1],
               PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int y = 0; y < picture.height; ++y) png_write_row(png, picture.row(y));
  png_write_end(png, info);
  return true;
}

bool read_header(PngState& state, png_structp png, png_infop info) {
  if (setjmp(state.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
  png_set_read_fn(png, &state, on_read);
  png_read_info(png, info);
  png_set_expand(png);
  png_set_strip_16(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  return true;
}

bool read_pixels(PngState& state, png_structp png, png_bytepp rows) {
  if (setjmp(state.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
  png_read_image(png, rows);
  png_read_end(png, nullptr);
  return true;
}

}  // namespace

Result<std::vector<uint8_t>> write_png(const ImageView& picture, const PngWriteOptions& options) {
  if (picture.channels != 1 && picture.channels != 3 && picture.channels != 4)
    return invalid_argument(str_cat("a PNG picture of ", picture.channels, " channels"))
        .with_hint("one (grey), three or four");
  if (picture.width < 1 || picture.height < 1 || picture.width > 1'000'000 ||
      picture.height > 1'000'000)
    return invalid_argument(str_cat("a PNG picture of ", picture.width, " x ", picture.height))
        .with_hint("1 to 1000000 pixels a side");
  if (options.compression < 0 || options.compression > 9)
    return invalid_argument(str_cat("PNG compression ", options.compression)).with_hint("0 to 9");
  PngState state;
  std::vector<uint8_t> bytes;
  state.output = &bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &state, on_error, on_warning);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  const bool done = info != nullptr && write_all(state, png, info, picture, options.compression);
  if (info == nullptr) state.no_memory = true;
  png_destroy_write_struct(&png, &info);
  if (!done) return png_failure(state);
  return bytes;
}

Result<Image> read_png(std::span<const uint8_t> bytes, int64_t max_pixels) {
  if (bytes.size() < 8 || png_sig_cmp(bytes.data(), 0, 8) != 0) return data_error("not a PNG file");
  PngState state;
  state.input = bytes;
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, on_error, on_warning);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  if (info == nullptr) {
    png_destroy_read_struct(&png, &info, nullptr);
    return out_of_memory("PNG: no memory");
  }
  Image picture;
  std::vector<png_bytep> rows;
  Status status;
  if (!read_header(state, png, info)) {
    status = png_failure(state);
  } else {
    const int64_t width = png_get_image_width(png, info), height = png_get_image_height(png, info);
    const int channels = png_get_channels(png, info);
    if (width * height > max_pixels) {
      status = data_error(str_cat("PNG: a picture of ", width, " x ", height, " pixels; at most ",
                                  max_pixels, " are read"));
    } else {
      picture.resize(static_cast<int>(width), static_cast<int>(height), channels);
      rows.resize(static_cast<size_t>(height));
      for (int y = 0; y < picture.height(); ++y) rows[y] = picture.row(y);
      if (!read_pixels(state, png, rows.data())) status = png_failure(state);
    }
  }
  png_destroy_read_struct(&png, &info, nullptr);
  if (!status.ok()) return status;
  return picture;
}

}  // namespace aerie::image
