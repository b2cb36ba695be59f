// A listener to every log line of this process, for those who tell others what it said last.
#pragma once

#include <functional>
#include <string_view>

#include "aerie/base/log.h"

namespace aerie {

// Called with the line as the console has it, from whichever thread logs, one at a time; must not
// log itself. Also on ranks whose console shows warnings only. An empty function removes it.
using LogTap = std::function<void(LogLevel level, std::string_view line)>;
void set_log_tap(LogTap tap);

}  // namespace aerie
