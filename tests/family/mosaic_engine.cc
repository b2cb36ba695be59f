#include "mosaic_engine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include "aerie/base/strings.h"
#include "mosaic_data.h"

namespace aerie::mosaic {

namespace {

constexpr double kMomentum = 0.9;

class Snapshot final : public train::StateSnapshot {
 public:
  Snapshot(std::vector<double> weights, std::vector<double> momentum)
      : weights_(std::move(weights)), momentum_(std::move(momentum)) {
    const auto add = [&](const char* file, const char* name, const std::vector<double>& values) {
      tensors_.push_back({file,
                          name,
                          Dtype::kF64,
                          {int64_t{kClasses}, int64_t{kFeatures}},
                          values.data(),
                          values.size() * sizeof(double)});
    };
    add("model", "weights", weights_);
    add("optimizer", "momentum.weights", momentum_);
  }
  Status wait() override { return ok_status(); }
  const std::vector<train::SnapshotTensor>& tensors() const override { return tensors_; }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  std::vector<double> weights_, momentum_;
  std::vector<train::SnapshotTensor> tensors_;
  std::string scalars_ = "{}";
};

}  // namespace

template <typename Visit>
void MosaicEngine::each_pixel(const data::Batch& batch, const Visit& visit) const {
  const Pictures pictures = pictures_of(batch);
  for (int64_t b = 0; b < pictures.count; ++b)
    for (int64_t y = 0; y < pictures.height; ++y)
      for (int64_t x = 0; x < pictures.width; ++x) {
        const int64_t at = (b * pictures.height + y) * pictures.width + x;
        const double bright = pictures.image[at] / 255.0;
        const std::array<double, kFeatures> features = {
            bright, bright * bright, static_cast<double>(y) / static_cast<double>(pictures.height),
            1.0};
        std::array<double, kClasses> p{};
        double top = -1e300, sum = 0.0;
        for (size_t c = 0; c < kClasses; ++c) {
          for (size_t f = 0; f < kFeatures; ++f) p[c] += weights_[c * kFeatures + f] * features[f];
          top = std::max(top, p[c]);
        }
        for (double& value : p) sum += value = std::exp(value - top);
        for (double& value : p) value /= sum;
        visit(features, static_cast<size_t>(pictures.label[at]), p);
      }
}

Status MosaicEngine::submit(const train::StepRequest& request) {
  for (const data::Batch* batch : request.micro_batches) {
    double loss = 0.0, pixels = 0.0;
    Weights gradient{};
    each_pixel(*batch, [&](const auto& features, size_t truth, const auto& p) {
      loss -= std::log(std::max(1e-300, p[truth]));
      hits_ += std::max_element(p.begin(), p.end()) - p.begin() == static_cast<int64_t>(truth);
      pixels += 1.0;
      for (size_t c = 0; c < kClasses; ++c)
        for (size_t f = 0; f < kFeatures; ++f)
          gradient[c * kFeatures + f] += (p[c] - (c == truth ? 1.0 : 0.0)) * features[f];
    });
    const double share = 1.0 / (pixels * static_cast<double>(request.accumulate));
    for (size_t i = 0; i < gradient.size(); ++i) gradient_[i] += gradient[i] * share;
    micro_losses_.push_back(loss / pixels);
    pixels_ += pixels;
  }
  if (!request.finish) return ok_status();
  train::StepOutcome out;
  out.step = request.step;
  for (const double loss : micro_losses_)
    out.loss += loss / static_cast<double>(micro_losses_.size());
  out.micro_losses = std::exchange(micro_losses_, {});
  for (const double g : gradient_) out.grad_norm += g * g;
  out.grad_norm = std::sqrt(out.grad_norm);
  out.metrics.add("pixel_accuracy", std::exchange(hits_, 0.0), std::exchange(pixels_, 0.0));
  for (size_t i = 0; i < weights_.size(); ++i) {
    momentum_[i] = kMomentum * momentum_[i] + gradient_[i];
    weights_[i] -= request.learning_rates[0] * momentum_[i];
  }
  gradient_ = {};
  finished_.push_back(std::move(out));
  return ok_status();
}

Result<std::vector<train::StepOutcome>> MosaicEngine::collect(bool) {
  return std::exchange(finished_, {});
}

Result<train::EvalOutcome> MosaicEngine::evaluate(const data::Batch& batch, uint64_t, uint64_t) {
  train::EvalOutcome out;
  out.sums.assign(kClasses * kClasses, 0.0);
  double pixels = 0.0;
  each_pixel(batch, [&](const auto&, size_t truth, const auto& p) {
    out.loss -= std::log(std::max(1e-300, p[truth]));
    const auto said = static_cast<size_t>(std::max_element(p.begin(), p.end()) - p.begin());
    out.sums[truth * kClasses + said] += 1.0;
    pixels += 1.0;
  });
  out.loss /= pixels;
  return out;
}

Result<std::unique_ptr<train::StateSnapshot>> MosaicEngine::snapshot() {
  return std::unique_ptr<train::StateSnapshot>(
      std::make_unique<Snapshot>(std::vector<double>(weights_.begin(), weights_.end()),
                                 std::vector<double>(momentum_.begin(), momentum_.end())));
}

Status MosaicEngine::restore(const train::StateSource& source) {
  const std::vector<int64_t> shape{int64_t{kClasses}, int64_t{kFeatures}};
  AERIE_RETURN_IF_ERROR(source.read("model", "weights", Dtype::kF64, shape, weights_.data()));
  return source.read("optimizer", "momentum.weights", Dtype::kF64, shape, momentum_.data());
}

Result<std::string> MosaicEngine::fall_back_precision() {
  return unsupported("there is one precision only");
}

}  // namespace aerie::mosaic
