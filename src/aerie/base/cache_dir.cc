#include "aerie/base/cache_dir.h"

#include <cstdlib>

#include "aerie/base/path.h"

namespace aerie {

std::string user_cache_dir() {
  if (const char* dir = std::getenv("AERIE_CACHE"); dir != nullptr && *dir != 0) return dir;
  if (const char* dir = std::getenv("XDG_CACHE_HOME"); dir != nullptr && *dir != 0)
    return join_path(dir, "aerie");
  const std::string dir = expand_user("~/.cache/aerie");
  return is_absolute_path(dir) ? dir : std::string();  // a user without a folder has no cache
}

}  // namespace aerie
