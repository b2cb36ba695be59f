// One training (or evaluation) step of whatever model an archive holds, on a batch from a file: the
// aerie side of random_models.py. Not a test by itself.
//
//   model_step FOLDER ...     every FOLDER has init.nemo and batch.safetensors, and gets
//                             out.safetensors, or error.txt when aerie refuses the model
#include <fstream>
#include <iostream>

#include <ATen/core/grad_mode.h>

#include "aerie/models/nest/nemo_model.h"
#include "fixture.h"

namespace aerie::parity {
namespace {

at::Tensor get(const archive::TensorArchive& file, const std::string& name) {
  return take(ckpt::read_tensor(file, name));
}

// Runs of masked frames as spans.
nest::MaskSpans spans_of(const at::Tensor& mask) {
  const at::Tensor host = mask.to(at::kBool).contiguous();
  nest::MaskSpans out(static_cast<size_t>(host.size(0)));
  for (int64_t b = 0; b < host.size(0); ++b)
    for (int64_t t = 0; t < host.size(1); ++t)
      if (host[b][t].item<bool>()) out[static_cast<size_t>(b)].push_back({t, t + 1});
  return out;
}

Status run(const std::string& folder) {
  AERIE_ASSIGN_OR_RETURN(const archive::TensorArchive in,
                         archive::read_safetensors(Env::real(), folder + "/batch.safetensors"));
  const Json setup = Json::parse(in.text_metadata().at("setup"));
  config::NestAerieConfig aerie;
  aerie.compat_nemo_2_6 = true;
  aerie.empty_mask = config::EmptyMask::kNan;
  aerie.activation_checkpointing = setup.value("recompute", false);
  AERIE_ASSIGN_OR_RETURN(ckpt::RestoredModel restored,
                         ckpt::restore_nest(Env::real(), folder + "/init.nemo", {.aerie = aerie}));
  nest::NestModel& model = *restored.model;

  nest::NestBatch batch;
  batch.audio = get(in, "audio");
  batch.noisy = get(in, "noisy");
  batch.lengths = get(in, "audio_len");
  batch.noisy_lengths = get(in, "noisy_len");
  const nest::MaskSpans spans = spans_of(get(in, "mask"));
  nn::InjectedDraws draws;
  for (int64_t i = 0; i < setup.at("dropouts").get<int64_t>(); ++i)
    draws.dropout_keep.push_back(get(in, "keep" + std::to_string(i)));
  if (setup.contains("context"))
    draws.context = std::array<int64_t, 2>{setup["context"][0], setup["context"][1]};
  if (setup.contains("drop_layers"))
    draws.drop_layers = setup["drop_layers"].get<std::vector<bool>>();
  nest::ForwardOptions options;
  options.training = setup.at("training").get<bool>();
  options.mask_spans = &spans;
  options.injected = &draws;

  std::vector<archive::OutTensor> out;
  const auto keep = [&](const std::string& name, const at::Tensor& value) {
    out.push_back(take(ckpt::out_tensor(name, value)));
  };
  nest::Preprocessor::Mode mode;
  keep("mel", model.preprocessor().forward(batch.audio, batch.lengths, mode).values);
  AERIE_ASSIGN_OR_RETURN(const nest::NestOutput result, model.forward(batch, options));
  result.loss.backward();
  keep("tokens", result.tokens);
  keep("encoded", result.encoded);
  keep("encoded_len", result.encoded_lengths);
  keep("selected", result.selected.to(at::kByte));
  keep("loss", result.loss);
  const nn::ParameterRegistry& registry = model.parameters();
  for (const int64_t index : registry.trainable())
    keep("grad." + registry.entries()[static_cast<size_t>(index)].name, registry.grad(index));
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (info.is_buffer && info.alias_of < 0) keep("after." + info.name, registry.tensor(i));
  }
  return archive::write_safetensors(Env::real(), folder + "/out.safetensors", out);
}

}  // namespace
}  // namespace aerie::parity

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    aerie::Status status;
    try {
      status = aerie::parity::run(argv[i]);
    } catch (const std::exception& error) {
      status = aerie::internal_error(error.what());
    }
    if (!status.ok()) std::ofstream(std::string(argv[i]) + "/error.txt") << status.to_string();
    std::cout << argv[i] << (status.ok() ? " ok" : " error") << std::endl;
  }
  return 0;
}
