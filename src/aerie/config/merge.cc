#include "aerie/config/merge.h"

#include "aerie/base/strings.h"
#include "aerie/config/resolver_engine.h"

namespace aerie::config {

namespace {

size_t count_nodes(const Value& value) {
  size_t count = 1;
  if (value.is_list()) {
    for (const Value& item : value.as_list()) count += count_nodes(item);
  } else if (value.is_map()) {
    for (const MapEntry& entry : value.as_map()) count += count_nodes(entry.value);
  }
  return count;
}

class Merger {
 public:
  Merger(Value& root, std::vector<std::string> path, bool struct_mode)
      : root_(root), path_(std::move(path)), struct_mode_(struct_mode) {}

  Status merge(Value& destination, const Value& source) {
    if (source.is_missing()) return ok_status();
    if (destination.is_map() && source.is_map()) return merge_maps(destination, source);
    if (destination.is_container() && source.is_container() &&
        destination.kind() != source.kind()) {
      const std::string where = path_.empty() ? "the config" : str_cat("'", join_path(path_), "'");
      return invalid_argument(str_cat(
          "cannot merge ", source.kind_phrase(), " (", source.origin().to_string(), ") into ",
          where, ", ", destination.kind_phrase(), " (", destination.origin().to_string(), ")"));
    }
    destination = source;
    return ok_status();
  }

  // After an error: where it happened.
  const std::vector<std::string>& path() const { return path_; }

 private:
  Status merge_maps(Value& destination, const Value& source) {
    if (path_.size() > static_cast<size_t>(kMaxDepth)) {
      return invalid_argument(str_cat("a config may be nested ", kMaxDepth, " deep, not more"));
    }
    for (const MapEntry& entry : source.as_map()) {
      Value* existing = destination.as_map().find(entry.key);
      path_.push_back(entry.key);
      if (existing) {
        if (existing->is_interpolation() && entry.value.is_container()) {
          AERIE_RETURN_IF_ERROR(follow(*existing));
        }
        AERIE_RETURN_IF_ERROR(merge(*existing, entry.value));
      } else if (struct_mode_) {
        return not_found(
            str_cat("Key '", entry.key, "' is not in struct\n    full_key: ", join_path(path_)));
      } else {
        destination.as_map().set(entry);
      }
      path_.pop_back();
    }
    return ok_status();
  }

  // A map merged into an interpolation of a map is merged into a copy of that map; an interpolation
  // that does not lead to a container is replaced.
  Status follow(Value& node) {
    const ResolveOptions options;
    ResolverEngine engine(root_, options);
    const auto place = engine.walk(engine.root(), path_, false);
    if (!place.ok() || !*place) return ok_status();
    const auto target = engine.evaluate(*place);
    if (!target.ok() || !(*target)->node->is_container()) return ok_status();
    const Value& source = *(*target)->node;
    copied_nodes_ += count_nodes(source);
    if (copied_nodes_ > options.max_nodes) {
      return invalid_argument(
          str_cat("merging copies more than ", options.max_nodes, " values; refused"));
    }
    if (path_.size() + static_cast<size_t>(source.depth()) > static_cast<size_t>(kMaxDepth)) {
      return invalid_argument(str_cat("a config may be nested ", kMaxDepth, " deep, not more"));
    }
    // By way of a copy: the target may contain the node that is replaced.
    Value copy = source;
    node = std::move(copy);
    return ok_status();
  }

  Value& root_;
  std::vector<std::string> path_;
  bool struct_mode_;
  size_t copied_nodes_ = 0;
};

}  // namespace

Status merge(Value& destination, const Value& source) {
  return Merger(destination, {}, false).merge(destination, source);
}

Status merge_at(Value& root, const std::vector<std::string>& path, const Value& source,
                bool struct_mode, std::vector<std::string>& missing) {
  Value* node = root.find(path);
  AERIE_CHECK(node, "merge into a node that is not there: ", join_path(path));
  Merger merger(root, path, struct_mode);
  const Status status = merger.merge(*node, source);
  if (status.code() == StatusCode::kNotFound) missing = merger.path();
  return status;
}

void fill_defaults(Value& into, const Value& defaults) {
  if (!into.is_map() || !defaults.is_map()) return;
  for (const MapEntry& entry : defaults.as_map()) {
    if (Value* existing = into.as_map().find(entry.key)) {
      // `node:` with nothing below is an empty node.
      if (existing->is_null() && entry.value.is_map()) *existing = Value(Map());
      fill_defaults(*existing, entry.value);
    } else {
      into.as_map().set(entry);
    }
  }
}

}  // namespace aerie::config
