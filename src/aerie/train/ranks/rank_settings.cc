#include "aerie/train/ranks/rank_settings.h"

namespace aerie::train {

Result<RankSettings> rank_settings(const config::TrainerConfig& trainer,
                                   const config::AerieConfig& aerie,
                                   config::OptimizerKind optimizer, bool autograd, int world) {
  const config::StrategyConfig& strategy = trainer.strategy;
  RankSettings out;
  out.autograd = autograd;
  out.find_unused = strategy.find_unused_parameters;
  out.static_graph = strategy.static_graph;
  // Recomputed layers give shared parameters their gradients piece by piece, which torch's reducer
  // takes for a mistake; with a static graph it cannot tell passes that only accumulate.
  out.gradient_as_bucket_view = strategy.gradient_as_bucket_view ||
                                aerie.activation_checkpointing ||
                                (strategy.static_graph && trainer.accumulate_grad_batches > 1);
  out.bucket_cap_mb = strategy.bucket_cap_mb;
  out.compression = strategy.comm_hook;
  out.shard = aerie.shard_optimizer;
  out.sync_batchnorm = trainer.sync_batchnorm && world > 1;
  out.broadcast_buffers = strategy.broadcast_buffers && world > 1;
  if (out.shard && optimizer == config::OptimizerKind::kNovograd)
    return unsupported("aerie.shard_optimizer: novograd's moments are those of whole tensors")
        .with_hint("use adamw, adam or sgd, or set aerie.shard_optimizer=false");
  return out;
}

}  // namespace aerie::train
