#include "aerie/data/speech/config/path_list.h"

#include "aerie/base/strings.h"

namespace aerie::config {

Result<PathList> parse_path_list(const Value& value) {
  PathList list;
  list.origin = value.origin().to_string();
  if (value.is_null()) return list;
  if (value.is_missing()) {
    list.is_missing = true;
    return list;
  }
  const auto text = [](const Value& item) -> Result<std::string> {
    if (item.is_string()) return item.as_string();
    if (item.is_number()) return python_str(item);
    return invalid_argument(str_cat("expected a path, got ", item.brief()));
  };
  if (!value.is_list()) {
    AERIE_ASSIGN_OR_RETURN(std::string path, text(value));
    list.groups.push_back({std::move(path)});
    return list;
  }
  list.is_list = true;
  for (const Value& item : value.as_list()) {
    std::vector<std::string> group;
    if (item.is_list()) {
      list.is_nested = true;
      for (const Value& inner : item.as_list()) {
        AERIE_ASSIGN_OR_RETURN(std::string path, text(inner));
        group.push_back(std::move(path));
      }
    } else {
      AERIE_ASSIGN_OR_RETURN(std::string path, text(item));
      group.push_back(std::move(path));
    }
    list.groups.push_back(std::move(group));
  }
  return list;
}

}  // namespace aerie::config
