// What a camera's picture is found by in a pack (docs/formats/pack.md).
#pragma once

#include <string_view>

#include "aerie/data/nuscenes/tables/token.h"
#include "aerie/data/pack/pack_format.h"

namespace aerie::nuscenes {

// Of every shard; shards with others are not read.
inline constexpr std::string_view kPicturePackSettings = "kind=nuscenes";

data::PackKey picture_key(const Token& sample, std::string_view channel);

}  // namespace aerie::nuscenes
