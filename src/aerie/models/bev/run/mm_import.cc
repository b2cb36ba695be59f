#include <utility>

#include <ATen/core/Tensor.h>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/models/bev/engine/bev_engine.h"
#include "aerie/models/bev/run/mm_export.h"
#include "aerie/models/bev/weights/load_weights.h"
#include "aerie/optim/optimizer_state.h"

namespace aerie::bev {
namespace {

// Names of a state dict that are no parameters, which torch's optimizers do not count.
bool is_buffer_name(std::string_view name) {
  for (const std::string_view end : {".running_mean", ".running_var", ".num_batches_tracked",
                                     ".relative_position_index", ".attn_mask"})
    if (ends_with(name, end)) return true;
  return false;
}

// The registry's entry of every parameter of the file, in the order in which torch numbers them.
std::vector<int64_t> numbered_entries(const archive::TensorArchive& weights,
                                      const nn::ParameterRegistry& registry) {
  std::vector<int64_t> out;
  for (const archive::TensorInfo& info : weights.tensors()) {
    std::string name = info.name;
    while (starts_with(name, "module.")) name.erase(0, 7);
    if (!is_buffer_name(name)) out.push_back(registry.find(name));
  }
  return out;
}

}  // namespace

Result<train::TrainState> import_mm_checkpoint(Env& env, train::BuiltEngine& built,
                                               const std::string& path) {
  constexpr const char* kWeightsAlone = "use load_from for the weights alone";
  BevEngine& engine = static_cast<BevEngine&>(*built.engine);
  nn::ParameterRegistry& registry = engine.model().parameters();
  AERIE_ASSIGN_OR_RETURN(const archive::LightningCheckpoint file,
                         archive::read_lightning_checkpoint(env, path));
  const std::optional<int64_t> iterations = train::mm_iterations(file.file, path);
  if (!iterations)
    return data_error(str_cat(path, ": meta does not say at which iteration it was written"))
        .with_hint(kWeightsAlone);
  if (file.optimizers.empty())
    return data_error(str_cat(path, ": holds no optimizer state to go on with"))
        .with_hint(kWeightsAlone);
  const std::vector<int64_t> entries = numbered_entries(file.weights, registry);
  size_t numbered = 0;
  for (const archive::ParamGroup& group : file.optimizers.front().groups)
    numbered += group.params.size();
  if (numbered != entries.size())
    return data_error(str_cat(path, ": its optimizer knows ", numbered,
                              " parameters, its state_dict holds ", entries.size()))
        .with_hint(kWeightsAlone);
  AERIE_ASSIGN_OR_RETURN(const LoadReport loaded, load_weights(registry, file.weights));
  if (!loaded.missing.empty())
    return data_error(str_cat(path, ": lacks ", loaded.missing.size(),
                              " tensors of this model, the first is ", loaded.missing.front()))
        .with_hint("was it trained with this configuration? load_from takes what is there");
  AERIE_RETURN_IF_ERROR(
      optim::load_numbered_state(file, entries, engine.optimizer()).with_context(path));
  if (engine.scaler() != nullptr && file.scaler)
    engine.scaler()->restore(file.scaler->scale, file.scaler->growth_tracker);
  log_info("train", "from ", path, ": ", loaded.loaded, " tensors, optimizer state of ",
           file.optimizers.front().params.size(), " parameters, iteration ", *iterations);
  train::TrainState state;
  state.step = *iterations;
  return state;
}

}  // namespace aerie::bev
