// The bird's-eye-view model: pictures of several cameras to a segmented map, in plain ATen. This is
// the definition that faster engines are compared with.
//
//   pictures -> Swin -> neck -> depth distributions and context -> splat -> network on the grid
//
// Parameters carry BEVFusion's names (encoders.camera.{backbone,neck,vtransform}, decoder,
// heads.map; bevencode.* where the network is Lift-Splat-Shoot's). The model owns its registry; one
// forward at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/models/bev/config/bev_config.h"
#include "aerie/models/bev/net/bev_parts.h"
#include "aerie/models/bev/net/swin.h"
#include "aerie/nn/param_registry.h"

namespace aerie::bev {

// Pictures and truth on the model's device; matrices on the CPU.
struct BevBatch {
  at::Tensor images;  // (B,N,3,H,W): uint8, normalised here, or floating point, normalised already
  ViewMatrices matrices;
  at::Tensor truth;      // (B,K,x,y) uint8, 0 or 1; may be undefined where no loss is wanted
  nn::RandomKey random;  // first_item counts samples
  // What matrices and random keys become on the model's device (BevModel::derive); undefined: the
  // pass makes them.
  at::Tensor rays;
  at::Tensor path_factors;
};

struct ForwardOptions {
  bool training = false;
  bool recompute =
      false;  // in training: keep the input of every Swin block, run it once more later
  nn::DtypePolicy policy;
  const nn::InjectedDraws* injected = nullptr;      // replaces the draws of stochastic depth
  const kernels::ExchangeSums* exchange = nullptr;  // BatchNorm over all ranks
  std::function<void(const std::string&, const at::Tensor&)> tap;
};

// Names of losses as logs have them: loss/map/<class>/focal ..., then loss.
struct MapLosses {
  std::vector<std::pair<std::string, at::Tensor>> parts;  // 0-dim, not differentiable
  at::Tensor total;                                       // 0-dim, differentiable
};
// Of the parts but the last.
std::vector<std::string> map_loss_names(const BevConfig& config);
MapLosses map_losses(const BevConfig& config, const at::Tensor& logits, const at::Tensor& truth);

// Counts of MapIou for a batch, made where the tensors are: int64 (3,K,thresholds) of true
// positives, false positives and false negatives. May be added up.
at::Tensor map_counts(const at::Tensor& probability, const at::Tensor& truth);

// Lift-Splat-Shoot's count for vehicles, predicted where the logit is above 0: int64 (2,K) of cells
// in both and cells in either. May be added up.
at::Tensor sign_counts(const at::Tensor& logits, const at::Tensor& truth);

// Parts of names of parameters that weight decay leaves alone.
std::vector<std::string> undecayed_parameters();

class BevModel {
 public:
  // `before_allocation` sees all parameters declared and may refuse.
  using Precheck = std::function<Status(const nn::ParameterRegistry&)>;
  static Result<std::unique_ptr<BevModel>> create(const BevConfig& config, uint64_t seed,
                                                  at::Device device = at::kCPU,
                                                  const Precheck& before_allocation = {});

  // Logits (B,K,x,y). A batch that does not fit the configuration is an error, as are exceptions
  // of the library.
  Result<at::Tensor> forward(const BevBatch& batch, const ForwardOptions& options) const;
  // Fills `rays` and `path_factors` of a batch that forward() will train on: what is left of the
  // pass takes nothing from the host. False: this model or device works another way.
  Result<bool> derive(BevBatch& batch) const;
  // The part that depends on calibration alone: which cell every point lies in.
  Result<std::shared_ptr<const SplatPlan>> plan(const BevBatch& batch) const;

  nn::ParameterRegistry& parameters() { return *registry_; }
  const nn::ParameterRegistry& parameters() const { return *registry_; }
  const BevConfig& config() const { return config_; }
  // Splat by tensor operations on the CPU too, as a GPU does it.
  void use_tensor_splat(bool on) { view_->use_tensor_splat(on); }

 private:
  explicit BevModel(const BevConfig& config) : config_(config) {}
  void build();
  Status check(const BevBatch& batch) const;

  BevConfig config_;
  std::unique_ptr<nn::ParameterRegistry> registry_;
  std::optional<Swin> backbone_;
  std::optional<Neck> neck_;
  std::optional<ViewTransform> view_;
  std::unique_ptr<BevHead> head_;
  mutable at::Tensor mean_, deviation_;  // of pictures, as the last pass needed them
};

}  // namespace aerie::bev
