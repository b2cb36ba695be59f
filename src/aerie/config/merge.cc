#include "aerie/base/strings.h"
#include "aerie/config/value.h"

namespace aerie::config {

namespace {

Status merge_at(Value& destination, const Value& source, std::vector<std::string>& path) {
  if (source.is_missing()) {
    return ok_status();
  }
  if (destination.is_map() && source.is_map()) {
    Map& into = destination.as_map();
    for (const MapEntry& entry : source.as_map()) {
      Value* existing = into.find(entry.key);
      if (!existing) {
        into.set(entry);
        continue;
      }
      path.push_back(entry.key);
      AERIE_RETURN_IF_ERROR(merge_at(*existing, entry.value, path));
      path.pop_back();
    }
    return ok_status();
  }
  if (destination.is_container() && source.is_container() && destination.kind() != source.kind()) {
    const std::string where = path.empty() ? "the config" : str_cat("'", join_path(path), "'");
    return invalid_argument(str_cat(
        "cannot merge ", source.kind_phrase(), " (", source.origin().to_string(), ") into ", where,
        ", a ", destination.kind_name(), " (", destination.origin().to_string(), ")"));
  }
  destination = source;
  return ok_status();
}

}  // namespace

Status merge(Value& destination, const Value& source) {
  std::vector<std::string> path;
  return merge_at(destination, source, path);
}

}  // namespace aerie::config
