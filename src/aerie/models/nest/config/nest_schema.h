// Every key of a NEST configuration.
#pragma once

#include "aerie/config/schema/schema.h"

namespace aerie::config {

// The engine's keys, those of speech data, and NEST's own.
const Schema& nest_schema();

}  // namespace aerie::config
