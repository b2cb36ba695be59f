#include "aerie/train/ranks/engine_ranks.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "aerie/base/strings.h"
#include "aerie/dist/torch_group.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/c10d_group.h"
#include "aerie/train/ranks/c10d_reducer.h"

namespace aerie::train {

namespace {

std::string description_of(const nn::ParameterRegistry& registry) {
  std::string out;
  for (const nn::ParamInfo& info : registry.entries()) {
    out += str_cat(info.name, info.trainable ? " t" : " f", info.is_buffer ? "b" : "p",
                   static_cast<int>(info.dtype), " ", info.flat_offset);
    for (const int64_t size : info.shape) out += str_cat(",", size);
    out += "\n";
  }
  return out;
}

// The first line in which two descriptions differ.
std::string difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split(a, '\n'), y = split(b, '\n');
  for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
    if (x[i] != y[i]) return x[i].substr(0, x[i].find(' '));
  return str_cat(x.size(), " and ", y.size(), " tensors");
}

Status check_same_model(dist::ProcessGroup& group, const nn::ParameterRegistry& registry) {
  const std::string mine = description_of(registry);
  std::string first = mine;
  AERIE_RETURN_IF_ERROR(group.broadcast(first, 0));
  int64_t differs = first == mine ? 0 : 1;
  const std::string where = differs != 0 ? difference(first, mine) : "";
  std::vector<int64_t> any(static_cast<size_t>(group.size()), 0);
  any[static_cast<size_t>(group.rank())] = differs;
  AERIE_RETURN_IF_ERROR(group.max(any));
  if (differs != 0)
    return invalid_argument(
               str_cat("this rank has another model than rank 0; the first difference is ", where))
        .with_hint("start all ranks with the same configuration and the same program");
  for (size_t rank = 0; rank < any.size(); ++rank)
    if (any[rank] != 0)
      return invalid_argument(str_cat("rank ", rank, " on ", group.host_of(static_cast<int>(rank)),
                                      " has another model than rank 0"))
          .with_hint("start all ranks with the same configuration and the same program");
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<EngineRanks>> EngineRanks::create(std::shared_ptr<dist::ProcessGroup> group,
                                                         nn::ParameterRegistry& registry,
                                                         const RankSettings& settings) {
  AERIE_RETURN_IF_ERROR(check_same_model(*group, registry));
  try {
    std::unique_ptr<EngineRanks> out(new EngineRanks());
    out->group_ = group;
    const at::Device device = registry.device();
    const auto torch = dist::torch_group(*group);
    out->tensors_ = make_rank_group(torch, group.get());
    BucketOptions buckets;
    buckets.bucket_bytes = static_cast<int64_t>(settings.bucket_cap_mb * 1048576.0);
    buckets.first_bucket_bytes = std::min<int64_t>(buckets.bucket_bytes, 1 << 20);
    buckets.compression = settings.compression;
    buckets.explain = [group = group.get()](Status error) {
      return group->explain(std::move(error));
    };
    if (settings.reduces && settings.autograd && !settings.gradient_as_bucket_view &&
        !settings.shard) {
      C10dReducerOptions options;
      static_cast<BucketOptions&>(options) = buckets;
      options.find_unused = settings.find_unused;
      options.static_graph = settings.static_graph;
      options.values = out->tensors_;
      AERIE_ASSIGN_OR_RETURN(out->reducer_, make_c10d_reducer(torch, registry, options));
    } else {
      out->reducer_ =
          make_flat_reducer(out->tensors_, device, {buckets, settings.shard, settings.reduces});
    }
    if (settings.sync_batchnorm) {
      // In an order of its own: sums of a layer do not wait behind buckets, nor for ranks whose
      // buckets come in another moment.
      AERIE_ASSIGN_OR_RETURN(const auto sums, dist::another_torch_group(*group, "sums"));
      const std::shared_ptr<RankGroup> ranks = make_rank_group(sums, group.get());
      out->exchange_recordable_ = ranks->recordable(device);
      out->exchange_ = make_exchange(ranks, device, buckets.explain);
    }
    out->broadcasts_buffers_ = !settings.sync_batchnorm && settings.broadcast_buffers;
    return out;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the reduction of gradients");
  }
}

Status EngineRanks::broadcast(std::vector<at::Tensor> tensors) {
  try {
    const at::NoGradGuard no_grad;
    std::vector<RankGroup::Piece> pieces;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // of what is not contiguous
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() == 0) continue;
      const at::Tensor plain = tensor.detach();
      if (plain.is_contiguous()) {
        pieces.push_back({plain, 0});
      } else {
        copies.emplace_back(plain, plain.contiguous());
        pieces.push_back({copies.back().second, 0});
      }
    }
    if (pieces.empty()) return ok_status();
    // NCCL's launches go together only on one device.
    std::stable_partition(pieces.begin(), pieces.end(),
                          [](const RankGroup::Piece& piece) { return piece.tensor.is_cpu(); });
    const auto device_begin =
        std::find_if(pieces.begin(), pieces.end(),
                     [](const RankGroup::Piece& piece) { return !piece.tensor.is_cpu(); });
    const std::vector<RankGroup::Piece> host(pieces.begin(), device_begin),
        device(device_begin, pieces.end());
    if (!host.empty()) tensors_->broadcast(host)();
    if (!device.empty()) tensors_->broadcast(device)();
    for (auto& [target, value] : copies) target.copy_(value);
    return ok_status();
  } catch (const std::exception& error) {
    return group_->explain(torch_status(error)).with_context("taking over rank 0's state");
  }
}

Status EngineRanks::broadcast_state(const FlatState& state) {
  std::vector<at::Tensor> tensors{state.registry.flat_params()};
  for (int64_t i = 0; i < state.registry.size(); ++i) {
    const nn::ParamInfo& info = state.registry.entries()[static_cast<size_t>(i)];
    if (info.alias_of < 0 && info.flat_offset < 0) tensors.push_back(state.registry.tensor(i));
  }
  if (!state.optimizer.kept())
    for (const at::Tensor& buffer : state.optimizer.buffers()) tensors.push_back(buffer);
  const at::Tensor counts = state.optimizer.step_counts().clone();
  tensors.push_back(counts);
  if (state.scaler != nullptr) {
    tensors.push_back(state.scaler->scale());
    tensors.push_back(state.scaler->growth_tracker());
  }
  if (state.ema != nullptr && state.ema->started()) tensors.push_back(state.ema->flat());
  AERIE_RETURN_IF_ERROR(broadcast(std::move(tensors)));
  state.optimizer.set_step_counts(counts);
  return ok_status();
}

}  // namespace aerie::train
