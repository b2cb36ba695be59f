#include "aerie/models/nest/config/att_context.h"

#include "aerie/base/strings.h"

namespace aerie::config {

Result<std::vector<std::array<int64_t, 2>>> parse_att_context(const Value& value) {
  std::vector<std::array<int64_t, 2>> contexts;
  if (value.is_null()) return std::vector<std::array<int64_t, 2>>{{-1, -1}};
  const auto pair = [](const Value& item) -> Result<std::array<int64_t, 2>> {
    if (!item.is_list() || item.as_list().size() != 2 || !item.as_list()[0].is_int() ||
        !item.as_list()[1].is_int())
      return invalid_argument(str_cat("expected [left, right], got ", item.brief()));
    for (const Value& side : item.as_list())
      if (side.as_int() < -1 || side.as_int() > 1'000'000'000)
        return invalid_argument(str_cat("a context of ", side.as_int(), " frames is out of range"));
    return std::array<int64_t, 2>{item.as_list()[0].as_int(), item.as_list()[1].as_int()};
  };
  const bool nested = value.is_list() && !value.as_list().empty() && value.as_list()[0].is_list();
  if (!nested) {
    AERIE_ASSIGN_OR_RETURN(const auto context, pair(value));
    contexts.push_back(context);
    return contexts;
  }
  for (const Value& item : value.as_list()) {
    AERIE_ASSIGN_OR_RETURN(const auto context, pair(item));
    contexts.push_back(context);
  }
  return contexts;
}

}  // namespace aerie::config
