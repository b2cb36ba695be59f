// The NEST model (NeMo's EncDecDenoiseMaskedTokenPredModel): reference path in plain ATen.
//
//   clean audio -> features -> quantizer -> tokens
//   noisy audio -> features -> masking -> encoder -> decoder -> loss on masked frames    (pre_conv)
//   mask_position post_conv masks and quantizes behind the subsampling (docs/numerics.md 1).
//
// The model owns its registry; the registry owns the tensors. One forward at a time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/decoder.h"
#include "aerie/models/nest/masking.h"
#include "aerie/models/nest/nest_batch.h"
#include "aerie/models/nest/preprocessor.h"
#include "aerie/models/nest/quantizer.h"
#include "aerie/nn/conformer_encoder.h"
#include "aerie/nn/param_registry.h"

namespace aerie::nest {

// Numbers the model is built with, after the adjustments of mask_position post_conv.
struct NestSettings {
  config::ModelConfig model;     // adjusted; archives store the config as it was given
  int64_t mask_block_size = 40;  // in frames of the features that are masked
  bool post_conv = false;
  std::vector<std::string> warnings;
};

// Checks the parts against each other and derives the settings. Errors name the keys.
Result<NestSettings> nest_settings(const config::ModelConfig& model);

struct ForwardOptions {
  bool training = false;
  bool apply_mask = true;  // validation masks too
  nn::DtypePolicy policy;
  // Replaces the drawn mask, for tests. In frames of the masked features.
  const MaskSpans* mask_spans = nullptr;
  // Replaces the draws inside the encoder, for tests. Outlives the backward pass.
  const nn::InjectedDraws* injected = nullptr;
  std::function<void(const std::string&, const at::Tensor&)> tap;
  // As ForwardContext has it.
  const kernels::ExchangeSums* exchange = nullptr;
};

struct NestOutput {
  MaskedLoss loss_parts;       // sum and number of masked frames
  at::Tensor loss;             // 0-dim, differentiable
  at::Tensor log_probs;        // (B,T',K,H)
  at::Tensor tokens;           // (B,T',H)
  at::Tensor mask;             // (B,T) bool over masked feature frames ((B,T') in post_conv)
  at::Tensor selected;         // (B,T') bool: frames in the loss
  at::Tensor encoded;          // (B,d,T')
  at::Tensor encoded_lengths;  // (B)
};

class NestModel {
 public:
  // Parameters are allocated on `device` and initialised from aerie.seed. `before_allocation` sees
  // all of them declared and may refuse: a file of weights is compared with the model before a
  // configuration from the same file can make us allocate.
  using Precheck = std::function<Status(const nn::ParameterRegistry&)>;
  static Result<std::unique_ptr<NestModel>> create(const config::ModelConfig& model,
                                                   const config::NestAerieConfig& aerie,
                                                   at::Device device = at::kCPU,
                                                   const Precheck& before_allocation = {});

  // Training and validation. Library exceptions (out of memory, for example) come back as Status.
  Result<NestOutput> forward(const NestBatch& batch, const ForwardOptions& options) const;
  // From features on: for tests and for callers that have their own front end.
  Result<NestOutput> forward_features(const Features& clean, const Features& noisy,
                                      const nn::RandomKey& random,
                                      const ForwardOptions& options) const;
  // Encoder output of clean audio without masking, eval mode, no gradients: feature extraction.
  Result<nn::EncoderOutput> encode(const at::Tensor& audio, const at::Tensor& lengths,
                                   const nn::DtypePolicy& policy, bool keep_layers) const;

  // Activation recomputation of the layers (aerie.activation_checkpointing).
  bool recomputes() const { return aerie_.activation_checkpointing; }
  void set_recompute(bool on) { aerie_.activation_checkpointing = on; }

  nn::ParameterRegistry& parameters() { return *registry_; }
  const nn::ParameterRegistry& parameters() const { return *registry_; }
  const NestSettings& settings() const { return settings_; }
  const Preprocessor& preprocessor() const { return *preprocessor_; }
  const Quantizer& quantizer() const { return *quantizer_; }
  const BlockMasking& masking() const { return *masking_; }
  const nn::ConformerEncoder& encoder() const { return *encoder_; }
  const Decoder& decoder() const { return *decoder_; }

 private:
  NestModel() = default;
  nn::ForwardContext context(const ForwardOptions& options, const nn::RandomKey& random) const;
  NestOutput run(const Features& clean, const Features& noisy, const nn::RandomKey& random,
                 const ForwardOptions& options) const;
  at::Tensor draw_mask(const ForwardOptions& options, const nn::RandomKey& random,
                       const at::Tensor& lengths, int64_t frames) const;

  NestSettings settings_;
  config::NestAerieConfig aerie_;
  std::unique_ptr<nn::ParameterRegistry> registry_;
  std::optional<Preprocessor> preprocessor_;
  std::unique_ptr<nn::ConformerEncoder> encoder_;
  std::unique_ptr<Quantizer> quantizer_;
  std::unique_ptr<BlockMasking> masking_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace aerie::nest
