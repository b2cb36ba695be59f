#include "aerie/models/nest/run/nest_measure.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/device/gpu.h"
#include "aerie/metrics/nvml.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/run/nest_engine.h"
#include "aerie/optim/schedule.h"
#include "aerie/train/batch_list_source.h"
#include "aerie/train/pinned_memory.h"

namespace aerie::train {

config::RunConfig nest_l_config() {
  config::RunConfig out;
  out.name = "NEST-L";
  config::ModelConfig& m = out.model;
  m.preprocessor.window_size = 0.025;
  m.preprocessor.n_fft = 512;
  m.preprocessor.features = 80;
  m.masking.mask_prob = 0.01;
  m.masking.block_size = 40;
  m.masking.allow_overlap = true;
  m.quantizer.dist_fn = config::QuantizerDistance::kL2;
  m.quantizer.combine_time_steps = 8;
  m.encoder.subsampling = config::Subsampling::kDwStriding;
  m.encoder.subsampling_factor = 8;
  m.encoder.subsampling_conv_channels = 256;
  m.encoder.n_heads = 8;
  m.encoder.conv_kernel_size = 9;
  m.encoder.dropout_emb = 0.0;
  m.encoder.dropout_att = 0.1;
  m.decoder.use_bias = true;
  m.loss.combine_time_steps = 8;
  m.optim.kind = config::OptimizerKind::kAdamW;
  m.optim.name = "adamw";
  m.optim.lr = 5.0;
  m.optim.betas = {0.9, 0.98};
  m.optim.weight_decay = 1e-3;
  config::SchedulerConfig sched;
  sched.warmup_steps = 25000;
  sched.min_lr = 1e-6;
  m.optim.sched = sched;
  return out;
}

double nest_step_tflop(const config::ModelConfig& model, int64_t batch_size, double seconds) {
  const double d = static_cast<double>(model.encoder.d_model);
  const double hop = static_cast<double>(model.preprocessor.hop_length());
  const double samples = seconds * static_cast<double>(model.sample_rate);
  const double frames = std::ceil((std::floor(samples / hop) + 1.0) /
                                  static_cast<double>(model.encoder.subsampling_factor));
  // Per frame, in multiply-adds.
  const double feed_forward =
      2.0 * 2.0 * d * static_cast<double>(model.encoder.ff_expansion_factor) * d;
  // q, k, v, out; the positions' (2T - 1 rows) are made once for the whole batch.
  const double projections = 4.0 * d * d + 2.0 * d * d / static_cast<double>(batch_size);
  const double scores = 2.0 * frames * d + 2.0 * frames * d;
  const double convolution = 3.0 * d * d + static_cast<double>(model.encoder.conv_kernel_size) * d;
  const double layer = feed_forward + projections + scores + convolution;
  const double decoder =
      d * static_cast<double>(model.decoder.num_classes * model.decoder.num_decoders);
  const double forward = static_cast<double>(batch_size) * frames *
                         (static_cast<double>(model.encoder.n_layers) * layer + decoder);
  return 3.0 * 2.0 * forward * 1e-12;
}

Result<NestMeasurement> measure(const config::RunConfig& config,
                                const NestMeasureOptions& options) {
  if (!(options.seconds > 0.0 && options.seconds <= 3600.0))
    return invalid_argument(str_cat("clips of ", options.seconds, " s cannot be measured"));
  Clock& clock = Clock::real();
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(config.trainer, config::count_visible_gpus()));
  std::vector<data::SyntheticBatch> batches;
  for (int64_t i = 0; i < std::max<int64_t>(1, options.batches); ++i) {
    data::SyntheticBatchOptions shape;
    shape.rows = options.batch_size;
    shape.samples =
        static_cast<int64_t>(options.seconds * static_cast<double>(config.model.sample_rate));
    shape.shortest = options.shortest;
    shape.sample_rate = static_cast<int>(config.model.sample_rate);
    shape.seed = config.aerie.seed + static_cast<uint64_t>(i);
    if (devices.gpu) shape.allocator = pinned_memory(devices.own);
    AERIE_ASSIGN_OR_RETURN(data::SyntheticBatch batch, data::SyntheticBatch::make(shape));
    batches.push_back(std::move(batch));
  }
  std::vector<const data::Batch*> list;
  for (const data::SyntheticBatch& batch : batches) list.push_back(&batch.batch());
  BatchListSource source(std::move(list));

  const double start = clock.monotonic_s();
  EngineOptions engine_options;
  engine_options.gpu = devices.gpu;
  engine_options.gpu_index = devices.own;
  engine_options.ranks = options.ranks;
  engine_options.reduces = options.reduces;
  AERIE_ASSIGN_OR_RETURN(BuiltEngine engine, make_nest_engine(config, engine_options));
  // From here on: what an earlier measurement held has been given back.
  const std::unique_ptr<metrics::NvmlSampler> nvml =
      devices.gpu ? metrics::NvmlSampler::start(device::pci_bus_id(devices.own).c_str(), 0.02)
                  : nullptr;
  NestMeasurement out;
  out.build_s = clock.monotonic_s() - start;
  out.engine = engine.engine->description();
  out.parameters = engine.engine->num_parameters();
  out.batch_size = options.batch_size;
  out.seconds = options.seconds;
  out.padded_audio_s = static_cast<double>(options.batch_size) * options.seconds;
  out.step_tflop = nest_step_tflop(config.model, options.batch_size, options.seconds);

  MeasureOptions measure_options;
  measure_options.amount_name = nest::nest_task().amount;
  measure_options.steps = options.steps;
  measure_options.warmup = options.warmup;
  measure_options.accumulate = config.trainer.accumulate_grad_batches;
  measure_options.wait_for_results = options.wait_for_results;
  measure_options.stop = options.stop;
  measure_options.after_warmup = options.after_warmup;
  // The rate of the first step of the schedule; its value does not change the time.
  auto schedule = optim::Schedule::make(config.model.optim.sched, engine.base_rates,
                                        std::max<int64_t>(config.trainer.max_steps, 1'000'000));
  if (!schedule.ok()) return schedule.status().with_context("model.optim.sched");
  measure_options.learning_rates = schedule->at(0);
  AERIE_ASSIGN_OR_RETURN(out.steps, measure_steps(*engine.engine, source, measure_options));
  if (options.ranks != nullptr) {
    const ReductionSize size = reduction_size(engine);
    out.buckets = size.buckets;
    out.reduced_bytes = size.bytes;
  }
  if (nvml != nullptr) {
    if (const auto sample = nvml->read_now()) out.device_gib = sample->peak_memory_used_gib;
  }
  return out;
}

}  // namespace aerie::train
