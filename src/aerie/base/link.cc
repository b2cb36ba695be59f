#include "aerie/base/link.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie {

Status replace_link(const std::string& target, const std::string& path) {
  const std::string beside =
      join_path(parent_path(path), str_cat(".", base_name(path), ".link-", ::getpid()));
  (void)::unlink(beside.c_str());
  const auto failed = [&](const char* what) {
    const int error = errno;
    (void)::unlink(beside.c_str());
    std::string text = str_cat(what, " ", path, ": ", std::strerror(error));
    return error == EPERM || error == ENOSYS || error == EOPNOTSUPP ? unsupported(std::move(text))
                                                                    : io_error(std::move(text));
  };
  if (::symlink(target.c_str(), beside.c_str()) != 0) return failed("cannot make the link");
  if (std::rename(beside.c_str(), path.c_str()) != 0) return failed("cannot replace");
  return ok_status();
}

}  // namespace aerie
