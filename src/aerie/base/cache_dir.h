// Where things are kept that can be made again: indexes of what is read often.
#pragma once

#include <string>

namespace aerie {

// $AERIE_CACHE, else $XDG_CACHE_HOME/aerie, else ~/.cache/aerie; empty for a user without a home.
// Nothing is created.
std::string user_cache_dir();

}  // namespace aerie
