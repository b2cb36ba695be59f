// Pictures of the fixture family: a folder with NAME.pgm (grey values) and NAME.label.pgm (a class
// a pixel), all of one size, binary PGM.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/batch.h"
#include "aerie/train/loader_source.h"

namespace aerie::mosaic {

// A batch as the engine sees it: count x height x width.
struct Pictures {
  int64_t count = 0, height = 0, width = 0;
  const uint8_t* image = nullptr;
  const uint8_t* label = nullptr;
};
Pictures pictures_of(const data::Batch& batch);

Result<std::unique_ptr<train::LoaderSource>> open_pictures(Env& env, const std::string& folder,
                                                           int64_t batch_size, bool shuffle,
                                                           uint64_t seed);

}  // namespace aerie::mosaic
