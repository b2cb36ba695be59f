// Python's numbers: literals and arithmetic. Internal to the dialect.
#pragma once

#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

// "1_000", "0x1F", "1e-3", ".5"; an error says what is wrong with it.
Result<Value> parse_number(std::string_view text);

// + - * / // % ** on ints, floats and bools, by Python's rules (7 // -2 is -4, 1 / 2 is 0.5). What
// Python would make a whole number beyond 64 bits, or a complex one, is an error.
Result<Value> arithmetic(std::string_view op, const Value& a, const Value& b);
Result<Value> negative(const Value& value);

}  // namespace aerie::config::mm
