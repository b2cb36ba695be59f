// The policies of mmcv by name, and the arguments each takes. Internal to the folder.
#pragma once

#include <string_view>

#include "aerie/optim/mm_schedule.h"

namespace aerie::bev {

struct Policy {
  optim::MmPolicy policy;
  std::string_view name;
  std::string_view arguments;           // "a|b", beyond those that all take
  std::string_view momentum_arguments;  // of the momentum policy; "-": there is none
};

// In any case of letters; null: there is none.
const Policy* find_policy(std::string_view name);
std::string_view policy_names();           // "a|b", with the spellings in lower case
std::string_view momentum_policy_names();  // those that momentum knows
// What every policy takes.
inline constexpr std::string_view kPolicyArguments =
    "name|by_epoch|warmup|warmup_iters|warmup_ratio|warmup_by_epoch";

}  // namespace aerie::bev
