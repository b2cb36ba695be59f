#include "aerie/models/nest/run/nest_plan.h"

#include <algorithm>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/run/nest_measure.h"
#include "aerie/models/nest/step/packed_rows.h"
#include "aerie/models/nest/step/step_plan_text.h"
#include "aerie/models/nest/step_setup.h"

namespace aerie::train {

Result<kernels::NestStepConfig> plan_step(const config::RunConfig& config, int64_t batch,
                                          double seconds, const kernels::DeviceModel& device) {
  if (!(seconds > 0.0 && seconds <= 3600.0))
    return invalid_argument(str_cat("clips of ", seconds, " s cannot be planned for"));
  if (const std::string reason = FastEngine::not_covered(config); !reason.empty())
    return unsupported(
               str_cat("the step is made by the reference engine, which has no plan: ", reason))
        .with_hint("docs/fast-engine.md lists what the fast engine covers");
  AERIE_ASSIGN_OR_RETURN(const nest::NestSettings settings, nest::nest_settings(config.model));
  kernels::NestStepConfig c = nest::step_config(settings, config.aerie);
  c.dtype = nest::step_dtype(config.trainer.precision);
  c.batch = static_cast<int>(batch);
  const auto samples =
      static_cast<int64_t>(seconds * static_cast<double>(config.model.sample_rate));
  c.samples = static_cast<int>(samples);
  // As the preprocessor pads where the fast engine covers it: without exact_pad.
  const config::PreprocessorConfig& features = settings.model.preprocessor;
  const int64_t padded_frames = 1 + samples / features.hop_length();
  c.frames =
      static_cast<int>((padded_frames + features.pad_to - 1) / features.pad_to * features.pad_to);
  const double shortest = NestMeasureOptions{}.shortest;
  std::vector<int32_t> frames;
  for (int64_t b = 0; b < batch; ++b) {
    const double share = batch == 1 ? 1.0
                                    : 1.0 - (1.0 - shortest) * static_cast<double>(b) /
                                                static_cast<double>(batch - 1);
    const auto length =
        std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(samples) * share + 1e-6));
    frames.push_back(static_cast<int32_t>(length / features.hop_length()));
  }
  kernels::RandomState random{};
  random.mask_key = philox_key(config.aerie.seed, Purpose::kMask);
  const kernels::PackedSize packed = kernels::packed_size(c, frames, random);
  c.rows = packed.rows;
  c.chosen = packed.chosen;
  kernels::PlanLimits limits;
  limits.recompute = config.aerie.activation_checkpointing;
  limits.parameters = kernels::count_parameters(c, settings.model.encoder.use_bias);
  c.plan = kernels::make_step_plan(c, device, limits);
  return c;
}

}  // namespace aerie::train
