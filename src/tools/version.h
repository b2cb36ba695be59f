// `aerie --version`: this build, and what it found on this machine.
#pragma once

#include <string>

namespace aerie::tools {

std::string version_text();

}  // namespace aerie::tools
