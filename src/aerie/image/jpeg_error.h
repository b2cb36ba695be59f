// How calls of libjpeg end early: its error handler jumps back to the caller, which makes a Status.
//
//   if (setjmp(errors.jump) != 0) return errors.status();   // no C++ object made after this line
//   jpeg_...(&cinfo);
//
// Between setjmp and the jump only functions of libjpeg and of ours without objects that need
// destroying may stand on the stack. (clang-tidy would have exceptions instead; C knows none.)
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs FILE and size_t
#include <jerror.h>

#include <jpeglib.h>

#include "aerie/base/status.h"

namespace aerie::image {

struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg hands out its address
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
  int code;
  bool out_of_memory;

  JpegErrors();
  Status status() const;
};

Status jpeg_truncated();

}  // namespace aerie::image
