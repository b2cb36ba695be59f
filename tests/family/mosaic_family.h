// A model family that lives in this folder alone, to prove that the engine asks for nothing else:
// images in, a confusion matrix as metric, iteration-based steps, a configuration dialect of its
// own.
//
//   file.mosaic:  key = value, one a line; # begins a comment
//   command line: FILE.mosaic [key=value ...]
#pragma once

#include "aerie/models/family.h"

namespace aerie::mosaic {

const models::Family& mosaic_family();
const models::Dialect& mosaic_dialect();

}  // namespace aerie::mosaic
