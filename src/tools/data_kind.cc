#include "data_kind.h"

#include "aerie/base/strings.h"

namespace aerie::tools {

Result<DataKind> take_kind(std::vector<std::string>& args) {
  constexpr std::string_view kOption = "--kind";
  std::string kind = "nest";
  for (size_t i = 0; i < args.size() && args[i] != "--";) {
    const bool joined = starts_with(args[i], "--kind=");
    if (!joined && args[i] != kOption) {
      ++i;
      continue;
    }
    if (!joined && i + 1 == args.size()) return invalid_argument("--kind needs a value");
    kind = joined ? args[i].substr(kOption.size() + 1) : args[i + 1];
    const auto begin = args.begin() + static_cast<ptrdiff_t>(i);
    args.erase(begin, begin + (joined ? 1 : 2));
  }
  if (kind == "nest") return DataKind::kNest;
  if (kind == "nuscenes") return DataKind::kNuscenes;
  const std::string near = nearest_name(kind, {"nest", "nuscenes"});
  return invalid_argument(str_cat("unknown --kind '", kind, "'"))
      .with_hint(near.empty() ? "nest or nuscenes" : str_cat("did you mean ", near, "?"));
}

}  // namespace aerie::tools
