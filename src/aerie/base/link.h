// Symbolic links. Real files alone: Env has none, since nothing of ours reads through them.
#pragma once

#include <string>

#include "aerie/base/status.h"

namespace aerie {

// Makes `path` a link to `target` (as written, relative to the folder of `path`), in place of a
// link or file of that name; at every moment there is one of the two. kUnsupported: the file system
// has no links.
Status replace_link(const std::string& target, const std::string& path);

}  // namespace aerie
