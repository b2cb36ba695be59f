// Values whose spelling needs more than a type: devices, times, batch limits, precision. Shared
// by the checks and by what fills structs. Errors say what was expected; the caller adds the key
// and where it was written.
#pragma once

#include <cstdint>

#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/config/value.h"

namespace aerie::config {

// -1, 2, "2", "0,1", [0, 1], "auto".
Result<DevicesConfig> parse_devices(const Value& value);
// "DD:HH:MM:SS", or {days, hours, minutes, seconds, weeks} with or without `_target_`; numbers are
// seconds where `numbers_are_seconds`. Result in seconds.
Result<double> parse_duration(const Value& value, bool numbers_are_seconds);
inline Result<double> parse_time(const Value& value) {
  return parse_duration(value, false);
}
inline Result<double> parse_seconds(const Value& value) {
  return parse_duration(value, true);
}
// Lightning's rule: an int is a count, a float up to 1 a share, a larger whole float a count.
Result<BatchLimit> parse_batch_limit(const Value& value);
// Any of Lightning's spellings; those that aerie refuses are errors.
Result<Precision> parse_precision(const Value& value);

// Whole numbers may be written 1e5; only ask after TypeSpec said it is a whole number.
int64_t whole_number(const Value& value);

}  // namespace aerie::config
