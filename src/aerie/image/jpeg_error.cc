#include "aerie/image/jpeg_error.h"

#include "aerie/base/printable.h"

namespace aerie::image {
namespace {

[[noreturn]] void leave(j_common_ptr cinfo) {
  auto* errors = reinterpret_cast<JpegErrors*>(cinfo->err);
  errors->manager.format_message(cinfo, errors->text);
  errors->code = cinfo->err->msg_code;
  errors->out_of_memory =
      errors->code == JERR_OUT_OF_MEMORY || errors->code == JERR_NO_BACKING_STORE;
  std::longjmp(errors->jump, 1);  // NOLINT(cert-err52-cpp)
}

// Level -1 is a warning. Those about the data mean that pixels would be made up; those about
// versions and side information do not touch pixels.
void on_message(j_common_ptr cinfo, int level) {
  if (level >= 0) return;
  switch (cinfo->err->msg_code) {
    case JWRN_JFIF_MAJOR:
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
      return;
    default:
      leave(cinfo);
  }
}

void on_output(j_common_ptr) {}

}  // namespace

JpegErrors::JpegErrors() : text{}, code(0), out_of_memory(false) {
  jpeg_std_error(&manager);
  manager.error_exit = leave;
  manager.emit_message = on_message;
  manager.output_message = on_output;
}

Status jpeg_truncated() {
  return data_error("JPEG: the file ends before the picture does (truncated)")
      .with_hint("copy it again");
}

Status JpegErrors::status() const {
  if (out_of_memory)
    return data_error(str_cat("JPEG: takes more memory than a picture may (", text, ")"))
        .with_hint("save it as a baseline picture, or smaller");
  switch (code) {
    case JERR_NO_SOI:
      return data_error(str_cat("not a JPEG file (", printable(text), ")"))
          .with_hint("look at its first bytes: another kind of file may bear this name");
    case JERR_INPUT_EMPTY:
      return data_error("not a JPEG file: it is empty");
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EOF:
      return jpeg_truncated();
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_ARITH_NOTIMPL:
      return unsupported(str_cat("JPEG: ", printable(text)))
          .with_hint("save it as an 8-bit baseline or progressive picture");
    default:
      return data_error(str_cat("JPEG: ", printable(text)));
  }
}

}  // namespace aerie::image
