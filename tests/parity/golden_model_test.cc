// Whole training runs of real NeMo, step by step: from init.nemo every micro-batch loss, learning
// rate, gradient norm, validation loss and final norm, and features before and after.
#include <algorithm>
#include <fstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "aerie/archive/nemo.h"
#include "aerie/archive/npy.h"
#include "aerie/audio/audio_reader.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/nemo_model.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/models/nest/restore.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "aerie/optim/schedule.h"
#include "fixture.h"

namespace aerie::parity {
namespace {

struct Clip {
  std::vector<float> samples;
};

// A run from its folder: config, model with init.nemo's weights, clips in manifest order.
class TrainingRun {
 public:
  TrainingRun(const std::string& folder, const std::string& config_name) : folder_(folder) {
    config::ConfigArgs args;
    args.config_path = folder;
    args.config_name = config_name;
    args.overrides = {"aerie.compat=nemo-2.6", "init_from_nemo_model=" + folder + "/init.nemo"};
    config_ = take(config::load_run_config(args)).run;
    model_ = take(nest::NestModel::create(config_.model, config_.aerie, test_device()));
    take(ckpt::initialize_from(Env::real(), config_.init_from, model_->parameters()));
    train_ = read_clips("train.json", true);
    val_ = read_clips("val.json", true);
    whole_val_ = read_clips("val.json", false);
  }

  nest::NestBatch batch(const std::vector<Clip>& clips, size_t first, size_t count) const {
    size_t longest = 0;
    for (size_t i = 0; i < count; ++i) longest = std::max(longest, clips[first + i].samples.size());
    nest::NestBatch b;
    // More room than needed: the reference path must compute on padded_samples alone.
    b.audio = at::zeros({static_cast<int64_t>(count), static_cast<int64_t>(longest) + 777});
    b.lengths = at::empty({static_cast<int64_t>(count)}, at::kLong);
    for (size_t i = 0; i < count; ++i) {
      const Clip& clip = clips[first + i];
      const auto row = static_cast<int64_t>(i);
      std::copy(clip.samples.begin(), clip.samples.end(), b.audio[row].data_ptr<float>());
      b.lengths[row] = static_cast<int64_t>(clip.samples.size());
    }
    b.audio = b.audio.to(test_device());
    b.lengths = b.lengths.to(test_device());
    b.noisy = b.audio.clone();
    b.noisy_lengths = b.lengths.clone();
    b.padded_samples = static_cast<int64_t>(longest);
    b.random.seed = config_.aerie.seed;
    return b;
  }

  // NeMo's val_loss: unweighted mean over batches.
  double validate() const {
    at::NoGradGuard no_grad;
    const auto size = static_cast<size_t>(config_.model.validation_ds.at(0).batch_size.value_or(1));
    double sum = 0.0;
    size_t batches = 0;
    for (size_t first = 0; first < val_.size(); first += size, ++batches) {
      const size_t count = std::min(size, val_.size() - first);
      sum += take(model_->forward(batch(val_, first, count), {})).loss.item<double>();
    }
    return sum / static_cast<double>(batches);
  }

  config::RunConfig config_;
  std::unique_ptr<nest::NestModel> model_;
  std::vector<Clip> train_;
  std::vector<Clip> val_;
  std::vector<Clip> whole_val_;  // durations ignored: a sample more where seconds round badly

 private:
  std::vector<Clip> read_clips(const std::string& manifest, bool durations) const {
    audio::ReadOptions options;
    options.sample_rate = static_cast<int>(config_.model.sample_rate);
    audio::AudioReader reader(options);
    std::vector<Clip> clips;
    std::ifstream file(folder_ + "/" + manifest);
    std::string line;
    while (std::getline(file, line)) {
      if (line.empty()) continue;
      const Json entry = Json::parse(line);
      audio::Segment segment;
      if (durations) segment.duration_s = entry.value("duration", 0.0);
      const auto view = take(
          reader.read_file(folder_ + "/" + entry.at("audio_filepath").get<std::string>(), segment));
      Clip clip;
      const int64_t least = audio::min_length_samples(1.0, options.sample_rate);
      clip.samples.resize(static_cast<size_t>(std::max(view.frames, least)));
      view.copy_to(clip.samples.data());
      audio::pad_to_min_length(clip.samples.data(), view.frames, least, audio::PadMode::kRepeat);
      clips.push_back(std::move(clip));
    }
    return clips;
  }

  std::string folder_;
};

// Trains as the config says and compares with the trace. Bounds from the traces' README.
void follow_trace(TrainingRun& run, const Json& trace) {
  const config::RunConfig& config = run.config_;
  nn::ParameterRegistry& params = run.model_->parameters();
  auto optimizer = take(optim::Optimizer::create(
      params, config.model.optim, config.model.optim_param_groups, config.aerie.no_weight_decay));
  ASSERT_TRUE(config.model.optim.sched.has_value());
  const optim::Schedule schedule = take(optim::Schedule::make(
      config.model.optim.sched, optimizer->base_rates(), config.trainer.max_steps));
  optim::ClipSettings clip;
  clip.value = config.trainer.gradient_clip_val;
  clip.algorithm = config.trainer.gradient_clip_algorithm;

  const auto batch_size = static_cast<size_t>(config.model.train_ds.batch_size.value_or(0));
  const bool drop_last = config.model.train_ds.drop_last;
  const size_t per_epoch = drop_last ? run.train_.size() / batch_size
                                     : (run.train_.size() + batch_size - 1) / batch_size;
  const auto accumulate = static_cast<size_t>(config.trainer.accumulate_grad_batches);
  const auto val_every = static_cast<size_t>(config.trainer.val_check_interval.count);

  int64_t step = 0;
  size_t val_runs = 0;
  const Json& micro = trace.at("micro");
  params.zero_grad();
  for (size_t m = 0; m < micro.size(); ++m) {
    const size_t in_epoch = m % per_epoch;
    EXPECT_EQ(micro[m].at("batch").get<size_t>(), in_epoch);
    const size_t first = in_epoch * batch_size;
    const nest::NestBatch batch =
        run.batch(run.train_, first, std::min(batch_size, run.train_.size() - first));
    nest::ForwardOptions options;
    options.training = true;
    const nest::NestOutput out = take(run.model_->forward(batch, options));
    EXPECT_NEAR(out.loss.item<double>(), micro[m].at("loss").get<double>(), m == 0 ? 1e-4 : 1e-3)
        << "micro-batch " << m;
    (out.loss / static_cast<double>(accumulate)).backward();

    const bool last_of_window = (in_epoch + 1) % accumulate == 0 || in_epoch + 1 == per_epoch;
    if (last_of_window) {
      const std::vector<double> rates = schedule.at(step);
      const Json& want = trace.at("steps")[static_cast<size_t>(step)];
      EXPECT_NEAR(rates[0], want.at("lr").get<double>(), 1e-6 * want.at("lr").get<double>());
      if (want.contains("lrs")) {
        for (size_t g = 0; g < rates.size(); ++g)
          EXPECT_NEAR(rates[g], want["lrs"][g].get<double>(), 1e-6 * want["lrs"][g].get<double>());
      }
      const double norm =
          optim::prepare_gradients(params.flat_grads(), {}, clip).norm.item<double>();
      const double want_norm = want.at("grad_norm").get<double>();
      EXPECT_NEAR(norm, want_norm, 0.01 * want_norm) << "step " << step + 1;
      optimizer->step(rates);
      params.zero_grad();
      ++step;
    }
    if ((m + 1) % val_every == 0) {
      const Json& want = trace.at("val")[val_runs];
      EXPECT_EQ(want.at("after_step").get<int64_t>(), step);
      EXPECT_NEAR(run.validate(), want.at("val_loss").get<double>(), 3e-3) << "step " << step;
      ++val_runs;
    }
  }
  EXPECT_EQ(static_cast<size_t>(step), trace.at("steps").size());
  EXPECT_EQ(val_runs, trace.at("val").size());

  size_t norms = 0;
  for (const auto& [name, want] : trace.at("final_norms").items()) {
    ASSERT_GE(params.find(name), 0) << name;
    // Biases in front of BatchNorm have no gradient but rounding noise, which Adam turns into full
    // steps; running statistics follow them.
    const bool noise = name.find("depthwise_conv.bias") != std::string::npos ||
                       name.find("running_") != std::string::npos;
    const double got = params[name].to(at::kDouble).norm().item<double>();
    if (!noise) {
      EXPECT_NEAR(got, want.get<double>(), 2e-3 * want.get<double>() + 1e-4) << name;
      ++norms;
    }
  }
  EXPECT_GT(norms, 50u);
}

struct Expected {
  archive::TensorArchive file;
  at::Tensor get(const std::string& name) const { return take(ckpt::read_tensor(file, name)); }
};

// mel0 of the first clip, encI and tokI of the first three. `abs`: 1e-4 before training, more
// after, when rounding has had its say.
void compare_features(const TrainingRun& run, const Expected& want, double abs) {
  for (size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE("validation clip " + std::to_string(i));
    at::NoGradGuard no_grad;
    const nest::NestBatch b = run.batch(run.whole_val_, i, 1);
    const at::Tensor audio = b.audio.narrow(1, 0, b.padded_samples);
    const nest::Features mel = run.model_->preprocessor().forward(audio, b.lengths, {});
    if (i == 0) {
      const at::Tensor expected = want.get("mel0");
      EXPECT_TRUE(near(mel.values[0].narrow(1, 0, expected.size(1)), expected, 1e-4, 1e-4));
    }
    const auto encoded = take(run.model_->encode(audio, b.lengths, {}, false));
    const at::Tensor expected = want.get("enc" + std::to_string(i));
    EXPECT_TRUE(near(encoded.encoded[0].t().narrow(0, 0, expected.size(0)), expected, abs, abs));
    const at::Tensor tokens = run.model_->quantizer().forward({}, mel.values)[0];
    at::Tensor expected_tokens = want.get("tok" + std::to_string(i)).to(at::kLong);
    if (expected_tokens.dim() == 1) expected_tokens = expected_tokens.unsqueeze(-1);
    // Groups that are padding from end to end have no token of their own.
    const int64_t valid = encoded.lengths[0].item<int64_t>();
    EXPECT_GE(expected_tokens.size(0), valid);
    EXPECT_TRUE(at::equal(tokens.cpu().narrow(0, 0, valid), expected_tokens.narrow(0, 0, valid)));
  }
}

class GoldenTrace : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTrace, FollowsNemoToTheLastStep) {
  const std::string folder = data_path(std::string("golden/") + GetParam());
  TrainingRun run(folder, "config");
  const Json trace = Json::parse(std::ifstream(folder + "/trace.json"));
  const Expected before{take(archive::read_npz(Env::real(), folder + "/features_init.npz"))};
  const Expected after{take(archive::read_npz(Env::real(), folder + "/features_final.npz"))};
  compare_features(run, before, 1e-4);
  follow_trace(run, trace);
  compare_features(run, after, 2e-2);
}

INSTANTIATE_TEST_SUITE_P(Folders, GoldenTrace, ::testing::Values("plain", "ragged"));

class TinyTrace : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyTrace, FollowsNemoToTheLastStep) {
  const std::string folder = data_path("fixtures/nest_tiny");
  TrainingRun run(folder, std::string("config_") + GetParam());
  follow_trace(run, Json::parse(std::ifstream(folder + "/trace_" + GetParam() + ".json")));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TinyTrace, ::testing::Values("adam", "sgd", "novograd"));

TEST(StateDictTest, NamesOrderShapesAndTypesAreNemos) {
  for (const char* name : {"golden/plain", "golden/ragged", "fixtures/nest_tiny"}) {
    SCOPED_TRACE(name);
    const std::string path = data_path(std::string(name) + "/init.nemo");
    const archive::NemoArchive file = take(archive::read_nemo(Env::real(), path));
    const auto restored = take(ckpt::restore_nest(Env::real(), path, {}));
    const nn::ParameterRegistry& params = restored.model->parameters();
    ASSERT_EQ(file.weights.tensors().size(), params.entries().size());
    for (size_t i = 0; i < params.entries().size(); ++i) {
      const archive::TensorInfo& stored = file.weights.tensors()[i];
      EXPECT_EQ(params.entries()[i].name, stored.name);
      EXPECT_EQ(params.entries()[i].shape, stored.shape) << stored.name;
      EXPECT_EQ(params.entries()[i].dtype, take(ckpt::scalar_type_of(stored.dtype))) << stored.name;
    }
    // Window and filterbank are computed here to the last bit of what NeMo stores.
    const auto fresh = take(nest::NestModel::create(
        take(ckpt::model_config_of(restored.model_node)), config::NestAerieConfig()));
    for (const char* buffer : {"preprocessor.featurizer.window", "preprocessor.featurizer.fb"})
      EXPECT_TRUE(at::equal(fresh->parameters()[buffer], params[buffer])) << buffer;
  }
}

TEST(TinyModelTest, OneStepWithDifferentNoisyAudio) {
  const std::string folder = data_path("fixtures/nest_tiny");
  const Fixture fixture("nest_tiny/step.safetensors");
  ckpt::RestoreOptions as_nemo;
  as_nemo.aerie.compat_nemo_2_6 = true;
  auto restored = take(ckpt::restore_nest(Env::real(), folder + "/init.nemo", as_nemo));
  nest::NestModel& model = *restored.model;
  nest::NestBatch batch;
  batch.audio = fixture.get("in.audio");
  batch.noisy = fixture.get("in.noisy_audio");
  batch.lengths = fixture.get("in.audio_len");
  batch.noisy_lengths = fixture.get("in.noisy_audio_len");
  const nest::Features clean = model.preprocessor().forward(batch.audio, batch.lengths, {});
  const nest::Features noisy = model.preprocessor().forward(batch.noisy, batch.noisy_lengths, {});
  EXPECT_TRUE(at::equal(clean.lengths, fixture.get("case0.out.clean_mel_len")));
  EXPECT_TRUE(at::equal(noisy.lengths, fixture.get("case0.out.noisy_mel_len")));
  EXPECT_TRUE(near(clean.values, fixture.get("case0.out.clean_mel"), 1e-4, 1e-4));
  EXPECT_TRUE(near(noisy.values, fixture.get("case0.out.noisy_mel"), 1e-4, 1e-4));
  nest::ForwardOptions options;
  options.training = true;
  const nest::NestOutput out = take(model.forward(batch, options));
  EXPECT_TRUE(at::equal(out.encoded_lengths, fixture.get("case0.out.encoded_len")));
  EXPECT_TRUE(at::equal(out.tokens, fixture.get("case0.out.tokens")));
  EXPECT_TRUE(at::equal(out.mask, fixture.get("case0.out.mask").to(at::kBool)));
  EXPECT_TRUE(near(out.encoded, fixture.get("case0.out.encoded"), 1e-4, 2e-5));
  EXPECT_TRUE(near(out.loss, fixture.get("case0.out.loss"), 1e-5, 0.0));
  out.loss.backward();
  nn::ParameterRegistry& params = model.parameters();
  size_t compared = 0;
  for (const std::string& name : fixture.names("case0.grad.")) {
    EXPECT_TRUE(near(params.grad(params.find(name)), fixture.get("case0.grad." + name), 1e-3, 1e-5))
        << name;
    ++compared;
  }
  EXPECT_EQ(compared, params.trainable().size());
}

TEST(TinyModelTest, FeaturesBeforeTraining) {
  const std::string folder = data_path("fixtures/nest_tiny");
  const Fixture fixture("nest_tiny/features_init.safetensors");
  ASSERT_EQ(fixture.kind, "model_features");
  TrainingRun run(folder, "config_adam");
  EXPECT_EQ(run.whole_val_.size(), fixture.cases.size());
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const nest::NestBatch b = run.batch(run.whole_val_, i, 1);
    const at::Tensor audio = b.audio.narrow(1, 0, b.padded_samples);
    const nest::Features mel = run.model_->preprocessor().forward(audio, b.lengths, {});
    const int64_t frames = mel.lengths[0].item<int64_t>();
    EXPECT_TRUE(near(mel.values[0].narrow(1, 0, frames), fixture.get(Fixture::key(i, "out.mel")),
                     1e-4, 1e-4));
    const auto encoded = take(run.model_->encode(audio, b.lengths, {}, false));
    const int64_t valid = encoded.lengths[0].item<int64_t>();
    EXPECT_TRUE(near(encoded.encoded[0].t().narrow(0, 0, valid),
                     fixture.get(Fixture::key(i, "out.encoded")), 1e-4, 1e-4));
    EXPECT_TRUE(
        at::equal(run.model_->quantizer().forward({}, mel.values)[0].cpu().narrow(0, 0, valid),
                  fixture.get(Fixture::key(i, "out.tokens"))));
  }
}

}  // namespace
}  // namespace aerie::parity
