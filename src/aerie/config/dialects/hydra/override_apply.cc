#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/hydra/override.h"
#include "aerie/config/merge.h"
#include "aerie/config/resolver.h"
#include "aerie/config/resolver_engine.h"

namespace aerie::config {

namespace {

using Path = std::vector<std::string>;

Path head(const Path& path, size_t count) {
  return Path(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(count));
}

// Where else in the tree the same last key stands; the walk is bounded by the tree itself.
void find_leaf(const Value& node, const std::string& leaf, Path& at, Path& found) {
  if (found.size() >= 3) return;
  if (node.is_map()) {
    for (const MapEntry& entry : node.as_map()) {
      at.push_back(entry.key);
      if (entry.key == leaf) found.push_back(join_path(at));
      find_leaf(entry.value, leaf, at, found);
      at.pop_back();
    }
  }
}

std::string with_place(const std::string& name, const Value* node) {
  if (!node || node->origin().kind != Origin::Kind::kFile) return str_cat("'", name, "'");
  return str_cat("'", name, "' (", node->origin().to_string(), ")");
}

// "did you mean ...?" for the part of `path` that does not exist.
std::string suggestion(const Value& config, const Path& path) {
  const Value* at = &config;
  for (size_t i = 0; i < path.size(); ++i) {
    const Value* next = at->child(path[i]);
    if (next) {
      at = next;
      continue;
    }
    if (at->is_map()) {
      const std::string near = nearest_name(path[i], at->as_map().keys());
      if (!near.empty()) {
        Path corrected = head(path, i);
        corrected.push_back(near);
        const Value* node = config.find(corrected);
        corrected.insert(corrected.end(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                         path.end());
        return str_cat("did you mean ", with_place(join_path(corrected), node), "?");
      }
    }
    break;
  }
  Path walk, found;
  find_leaf(config, path.back(), walk, found);
  if (found.empty()) return "";
  std::string out = "did you mean ";
  for (size_t i = 0; i < found.size(); ++i) {
    if (i > 0) out += " or ";
    out += with_place(found[i], config.find(found[i]));
  }
  return out + "?";
}

Status with_suggestion(Status status, const Value& config, const Path& path) {
  const std::string hint = suggestion(config, path);
  return hint.empty() ? status : std::move(status).with_hint(hint);
}

class Application {
 public:
  Application(Value& config, const Override& override, bool struct_mode)
      : config_(config),
        override_(override),
        path_(split(override.key, '.')),
        struct_mode_(struct_mode) {}

  Status run() {
    if (override_.package) {
      return invalid_argument(str_cat("Override ", override_.text,
                                      " looks like a config group override, but config group '",
                                      override_.key, "' does not exist."));
    }
    AERIE_CHECK(override_.value || override_.kind == Override::Kind::kDelete,
                "an override without a value");
    switch (override_.kind) {
      case Override::Kind::kDelete:
        return remove();
      case Override::Kind::kAdd:
        return add();
      case Override::Kind::kForceAdd:
        return update(false);
      case Override::Kind::kChange:
        return update(struct_mode_);
    }
    return internal_error("an override of no kind");
  }

 private:
  // Where `path_` really stands: with `ref: ${d}` the key ref.p is d.p, for adding and deleting.
  Path behind_interpolations() const {
    const ResolveOptions options;
    ResolverEngine engine(config_, options);
    const auto place = engine.walk(engine.root(), path_, /*strict=*/false);
    if (!place.ok() || !*place) return path_;
    Path out;
    for (const Place* at = place->get(); at->parent; at = at->parent.get()) out.push_back(at->key);
    std::reverse(out.begin(), out.end());
    // A value that a resolver made stands nowhere.
    return config_.find(out) == (*place)->node ? out : path_;
  }

  Status remove() {
    const Path path = behind_interpolations();
    const Value* node = config_.find(path);
    if (!node) {
      return with_suggestion(invalid_argument(str_cat("Could not delete from config. '",
                                                      override_.key, "' does not exist.")),
                             config_, path_);
    }
    // The value that the user sees counts; if it cannot be resolved, what is written.
    auto resolved = resolve_at(config_, override_.key);
    const Value& actual = resolved.ok() ? resolved.value() : *node;
    // Hydra takes null and `???` for absent.
    if (actual.is_null() || actual.is_missing()) {
      return invalid_argument(
                 str_cat("Could not delete from config. '", override_.key, "' does not exist."))
          .with_hint(actual.is_null() ? "its value is null, which counts as absent: leave it out"
                                      : "it has no value yet");
    }
    if (override_.value && !override_.value->is_null() && !python_equal(actual, *override_.value)) {
      return invalid_argument(str_cat("Could not delete from config. The value of '", override_.key,
                                      "' is ", actual.brief(), " and not ",
                                      override_.value->brief(), "."));
    }
    const Path parent = head(path, path.size() - 1);
    if (config_.find(parent)->is_list()) {
      return invalid_argument(str_cat("Could not delete from config. '", join_path(parent),
                                      "' is a list, and items of a list cannot be deleted."))
          .with_hint(str_cat("give the whole list: ", join_path(parent), "=[...]"));
    }
    config_.erase(path);
    return ok_status();
  }

  Status add() {
    const Value* node = config_.find(behind_interpolations());
    const bool vacant = !node || node->is_null() || node->is_missing();
    if (vacant || override_.value->is_container()) return update(false);
    return invalid_argument(str_cat(
        "Could not append to config. An item is already at '", override_.key,
        "'.\nEither remove + prefix: '", override_.text.substr(1),
        "'\nOr add a second + to add or override '", override_.key, "': '+", override_.text, "'"));
  }

  Status not_in_struct(const std::string& reason, const Path& missing) const {
    return with_suggestion(invalid_argument(str_cat("Could not override '", override_.key,
                                                    "'.\nTo append to your config use +",
                                                    override_.text, "\n", reason)),
                           config_, missing);
  }

  Status not_in_struct(size_t depth) const {
    return not_in_struct(str_cat("Key '", path_[depth], "' is not in struct\n    full_key: ",
                                 join_path(head(path_, depth + 1))),
                         path_);
  }

  Status update(bool struct_mode) {
    const Value& value = *override_.value;
    if (path_.size() + static_cast<size_t>(value.depth()) > static_cast<size_t>(kMaxDepth)) {
      return invalid_argument(str_cat("a config may be nested ", kMaxDepth, " deep, not more"))
          .with_context(override_.text);
    }
    Value* at = &config_;
    for (size_t i = 0; i < path_.size(); ++i) {
      const bool last = i + 1 == path_.size();
      if (!at->is_container()) {
        // Hydra puts an empty map here, in which the key is then not in struct.
        if (struct_mode) return not_in_struct(i);
        *at = Value(Map()).with_origin(value.origin());
      }
      Value* next = at->child(path_[i]);
      if (!next && at->is_list()) {
        return invalid_argument(str_cat("Error merging override ", override_.text, ": '", path_[i],
                                        "' is no index into '", join_path(head(path_, i)),
                                        "', a list of ", at->as_list().size()));
      }
      if (!next) {
        if (struct_mode) return not_in_struct(i);
        next = &at->as_map().set(path_[i], Value());
        next->set_origin(value.origin());
        if (last) {
          *next = value;
          return ok_status();
        }
      }
      at = next;
    }
    if (!at->is_container() || !value.is_container()) {
      *at = value;
      return ok_status();
    }
    Path missing;
    const Status status = merge_at(config_, path_, value, struct_mode, missing);
    if (status.code() == StatusCode::kNotFound) return not_in_struct(status.message(), missing);
    if (!status.ok())
      return status.with_context(str_cat("Error merging override ", override_.text));
    return status;
  }

  Value& config_;
  const Override& override_;
  Path path_;
  bool struct_mode_;
};

}  // namespace

Status apply_override(Value& config, const Override& override, bool struct_mode) {
  AERIE_CHECK(config.is_map(), "overrides are applied to a map");
  return Application(config, override, struct_mode).run();
}

}  // namespace aerie::config
