#include "aerie/data/nuscenes/pack/picture_key.h"

#include <xxhash.h>

#include "aerie/base/strings.h"

namespace aerie::nuscenes {

data::PackKey picture_key(const Token& sample, std::string_view channel) {
  const std::string text = str_cat("nuscenes\n", to_string(sample), "\n", channel);
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

}  // namespace aerie::nuscenes
