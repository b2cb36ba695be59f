#include "aerie/base/temp_dir.h"

#include <cerrno>
#include <cstring>
#include <stdlib.h>

#include "aerie/base/check.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"

namespace aerie {

TempDir::TempDir() {
  const char* root = ::getenv("TMPDIR");
  std::string name = join_path(root != nullptr && *root != '\0' ? root : "/tmp", "aerie-XXXXXX");
  AERIE_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make ", name, ": ", std::strerror(errno));
  path_ = name;
}

TempDir::~TempDir() {
  (void)Env::real().remove_tree(path_);
}

std::string TempDir::file(std::string_view name) const {
  return join_path(path_, name);
}

}  // namespace aerie
