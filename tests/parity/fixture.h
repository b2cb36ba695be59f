// Reading the fixtures of tests/data/fixtures (format: tests/golden/README.md) into tensors and
// config structs. Test code: failures are gtest failures or exceptions.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/safetensors.h"
#include "aerie/checkpoint/tensor_io.h"
#include "aerie/models/nest/config/model_config.h"
#include "aerie/nn/param_registry.h"

namespace aerie::parity {

using Json = nlohmann::json;

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(result).value();
}

// The folder of test data; AERIE_TEST_DATA in the environment replaces the one built in, for
// machines that did not build the tests.
std::string data_path(const std::string& name);
// Where models are built: the CPU, or with AERIE_TEST_DEVICE=cuda the first GPU. On a GPU float32
// products stay float32 (no TF32), as the fixtures were made.
at::Device test_device();

class Fixture {
 public:
  explicit Fixture(const std::string& file)
      : archive_(take(archive::read_safetensors(Env::real(), data_path("fixtures/" + file)))) {
    const auto& meta = archive_.text_metadata();
    kind = meta.at("kind");
    config = Json::parse(meta.at("config"));
    cases = Json::parse(meta.at("cases"));
  }

  bool has(const std::string& name) const { return archive_.find(name) != nullptr; }
  at::Tensor get(const std::string& name) const { return take(ckpt::read_tensor(archive_, name)); }
  // The case's own tensor, else the shared one.
  at::Tensor input(size_t index, const std::string& name) const {
    const std::string own = key(index, "in." + name);
    return get(has(own) ? own : "in." + name);
  }
  static std::string key(size_t index, const std::string& name) {
    return "case" + std::to_string(index) + "." + name;
  }
  // Names that start with `prefix`, without it.
  std::vector<std::string> names(const std::string& prefix) const {
    std::vector<std::string> out;
    for (const auto& info : archive_.tensors())
      if (info.name.rfind(prefix, 0) == 0) out.push_back(info.name.substr(prefix.size()));
    return out;
  }
  // Copies `prefix`<name> into every entry of the registry. Names must match both ways.
  void load_weights(nn::ParameterRegistry& registry, const std::string& prefix) const;

  std::string kind;
  Json config;
  Json cases;

 private:
  archive::TensorArchive archive_;
};

// EncoderConfig from constructor arguments under NeMo's keys; unknown keys throw.
config::EncoderConfig encoder_config(const Json& json);
config::PreprocessorConfig preprocessor_config(const Json& json);
config::MaskingConfig masking_config(const Json& json);
config::QuantizerConfig quantizer_config(const Json& json);
config::DecoderConfig decoder_config(const Json& json);
config::LossConfig loss_config(const Json& json);

// What is allowed where nothing else is said.
inline constexpr double kRel = 1e-4;
inline constexpr double kAbs = 1e-5;
// |got - want| <= abs + rel * |want| for every element; NaN equals NaN.
::testing::AssertionResult near(const at::Tensor& got, const at::Tensor& want, double rel,
                                double abs);
// Largest difference over the largest magnitude of `want` (or `scale` when that is larger).
double deviation(const at::Tensor& got, const at::Tensor& want, double scale = 0.0);

std::vector<std::string> fixture_files(const std::string& prefix);

}  // namespace aerie::parity
