// The machine behind resolver.h: walks the tree, evaluates syntax trees, remembers results.
// Internal to config.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/interpolation.h"
#include "aerie/config/resolver.h"
#include "aerie/config/value.h"

namespace aerie::config {

// A node and the way to it, which relative keys need. A value made by a resolver stands where the
// interpolation stood.
struct Place {
  const Value* node = nullptr;
  std::shared_ptr<const Place> parent;  // container; null at the root
  std::string key;
};
using PlacePtr = std::shared_ptr<const Place>;

class ResolverEngine {
 public:
  ResolverEngine(const Value& root, const ResolveOptions& options);

  PlacePtr root() const { return root_; }
  // The place itself, or where its interpolation leads; never an interpolation.
  Result<PlacePtr> evaluate(const PlacePtr& place);
  // A copy of the subtree without interpolations.
  Result<Value> expand(const PlacePtr& place);
  // Follows keys downwards from a container, through interpolations on the way, not at the end.
  // Null when a key does not exist; a `???` or scalar on the way is an error when `strict`, else
  // null.
  Result<PlacePtr> walk(PlacePtr from, const std::vector<std::string>& keys, bool strict);

  // The rest is for the resolver functions (resolver_functions.cc).

  // A value made by a function, standing in place of the interpolation at `place`.
  PlacePtr make(const PlacePtr& place, Value value);
  // A key as oc.select takes it, relative to the container of `place` when it begins with a dot.
  Result<PlacePtr> select(const PlacePtr& place, std::string_view key, bool strict);
  Result<Value> element(const PlacePtr& place, const Element& element);
  const ResolveOptions& options() const { return options_; }
  Status charge(size_t nodes, size_t text_bytes);
  void note_env_read() { ++env_reads_; }

 private:
  Result<PlacePtr> evaluate_text(const PlacePtr& place, const Text& text);
  Result<std::string> text_of(const PlacePtr& place, const Text& text);
  Result<PlacePtr> interpolation(const PlacePtr& place, const Interpolation& interpolation);
  Result<PlacePtr> node_reference(const PlacePtr& place, const Interpolation& interpolation);
  Result<std::string> key_text(const PlacePtr& place, const TextPart& key, const char* what);
  Result<Value> expand_container(const PlacePtr& place);
  Status not_found(const PlacePtr& from, const std::vector<std::string>& keys,
                   std::string_view written) const;
  void note_read(const PlacePtr& place);

  const ResolveOptions& options_;
  PlacePtr root_;
  struct Done {
    PlacePtr result;
    bool reads_env = false;
  };
  std::unordered_map<const Value*, Done> done_;
  std::vector<PlacePtr> active_;         // interpolations being evaluated, outermost first
  std::vector<const Value*> expanding_;  // containers being copied, outermost first
  std::vector<std::shared_ptr<const Value>> made_;  // keeps addresses in done_ valid
  size_t nodes_ = 0;
  size_t text_bytes_ = 0;
  size_t env_reads_ = 0;  // a remembered result that read the environment counts again
};

// "a.b.0"; empty at the root.
std::string full_key(const Place& place);

// `${name:arguments}` at `place`.
Result<PlacePtr> call_resolver(ResolverEngine& engine, const PlacePtr& place,
                               const std::string& name, const std::vector<Value>& arguments);

}  // namespace aerie::config
