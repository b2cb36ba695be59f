#include "aerie/models/nest/probe/run_probe.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/tensor.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/thread_pool.h"
#include "aerie/models/nest/features/clips.h"
#include "aerie/models/nest/features/input_list.h"
#include "aerie/models/nest/probe/feature_sources.h"
#include "aerie/models/nest/probe/linear_probe.h"
#include "aerie/models/nest/probe/probe_data.h"
#include "aerie/models/nest/restore.h"
#include "aerie/nn/torch_error.h"

namespace aerie::probe {
namespace {

// Numbers of the parts in the random streams; part of the reproducibility contract.
enum : uint32_t { kTrainPart = 0, kDevPart = 1, kTestPart = 2 };

// Fewer utterances than this neither choose a layer nor test it.
constexpr size_t kMinUtterances = 10;

Result<data::Manifest> open_manifest(Env& env, const std::string& option, const std::string& path) {
  const std::string expanded = expand_user(path);
  if (path.empty()) return invalid_argument(str_cat(option, " is needed"));
  if (!env.exists(expanded))
    return invalid_argument(str_cat("there is no '", expanded, "'")).with_context(option);
  return features::open_manifest(env, expanded);
}

// One task's labels, as rows of the tables; -1 was left out already.
struct Labels {
  at::Tensor train, dev, test;
  int64_t num_classes = 0;
};

// The matrices of one task and one kind of features.
struct Matrices {
  std::vector<at::Tensor> train, dev, test;  // per layer
};

at::Tensor label_tensor(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

double largest_share(const at::Tensor& train, const at::Tensor& test, int64_t num_classes) {
  if (test.numel() == 0) return 0.0;
  const int64_t largest = at::bincount(train, {}, num_classes).argmax().item<int64_t>();
  return test.eq(largest).sum().item<double>() / static_cast<double>(test.numel());
}

Status with_context(Status status, std::string where) {
  return status.ok() ? status : std::move(status).with_context(std::move(where));
}

// Torch computes in the calling thread alone while this lives.
class SingleThreadedTorch final {
 public:
  SingleThreadedTorch() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~SingleThreadedTorch() { at::set_num_threads(before_); }
  SingleThreadedTorch(const SingleThreadedTorch&) = delete;
  SingleThreadedTorch& operator=(const SingleThreadedTorch&) = delete;
  int threads_before() const { return before_; }

 private:
  int before_;
};

class Prober final {
 public:
  Prober(const ProbeOptions& options, Env& env) : options_(options), env_(env) {}

  Result<ProbeReport> run() {
    const Stopwatch watch;
    AERIE_ASSIGN_OR_RETURN(device_, features::open_device(options_.device));
    ckpt::RestoreOptions restore;
    restore.config = options_.config;
    restore.device = device_;
    AERIE_ASSIGN_OR_RETURN(restored_, ckpt::restore_nest(env_, options_.model, restore));
    const config::ModelConfig& config = restored_.model->settings().model;
    sample_rate_ = config.sample_rate;
    frame_samples_ = frame_samples_of(*restored_.model);
    report_.model = options_.model;
    report_.num_layers = config.encoder.n_layers;
    report_.width = restored_.model->encoder().feat_out();
    report_.frame_s = static_cast<double>(frame_samples_) / static_cast<double>(sample_rate_);
    report_.stacked_frames = config.encoder.subsampling_factor;
    report_.noisy = !options_.noise.empty();
    report_.min_snr_db = options_.min_snr_db;
    report_.max_snr_db = options_.max_snr_db;

    AERIE_RETURN_IF_ERROR(read_parts());
    AERIE_RETURN_IF_ERROR(label_phonemes());
    std::string why = str_cat("phoneme: ", phoneme_.skipped);
    bool any = phoneme_.skipped.empty();
    for (const std::string& field : options_.labels) {
      pooled_.push_back(label_utterances(field));
      any = any || pooled_.back().report.skipped.empty();
      why += str_cat("; ", field, ": ", pooled_.back().report.skipped);
    }
    if (!any)
      return data_error(str_cat("nothing to probe: ", why))
          .with_hint(
              "`aerie data synth` writes manifests with phonemes and speakers; --label names "
              "a field of yours");
    AERIE_RETURN_IF_ERROR(probe_sources());
    report_.tasks = {std::move(phoneme_)};
    for (PooledTask& task : pooled_) report_.tasks.push_back(std::move(task.report));
    report_.elapsed_s = watch.elapsed_s();
    return std::move(report_);
  }

 private:
  Status read_parts() {
    AERIE_ASSIGN_OR_RETURN(const data::Manifest train,
                           open_manifest(env_, "--train", options_.train));
    AERIE_ASSIGN_OR_RETURN(const data::Manifest dev, open_manifest(env_, "--dev", options_.dev));
    AERIE_ASSIGN_OR_RETURN(const data::Manifest test, open_manifest(env_, "--test", options_.test));
    std::optional<NoiseSource> noise, noise_test;
    if (!options_.noise.empty()) {
      AERIE_ASSIGN_OR_RETURN(noise, open_noise("--noise", options_.noise));
    }
    if (!options_.noise_test.empty()) {
      AERIE_ASSIGN_OR_RETURN(noise_test, open_noise("--noise-test", options_.noise_test));
    }
    const NoiseSource* train_noise = noise ? &*noise : nullptr;
    const NoiseSource* test_noise = noise_test ? &*noise_test : train_noise;

    // A small manifest is shared three to one between fitting and the speaker test.
    auto fit = static_cast<uint64_t>(options_.train_utterances);
    auto held_out = static_cast<uint64_t>(options_.speaker_utterances);
    if (fit + held_out > train.size()) {
      held_out = std::min(held_out, train.size() / 4);
      fit = std::min(fit, train.size() - held_out);
    }
    AERIE_ASSIGN_OR_RETURN(
        train_, read(train, choose_lines(train.size(), 0, fit, options_.seed, kTrainPart),
                     train_noise, kTrainPart));
    if (held_out > 0) {
      AERIE_ASSIGN_OR_RETURN(
          held_out_,
          read(train, choose_lines(train.size(), fit, held_out, options_.seed, kTrainPart),
               train_noise, kTrainPart));
    }
    AERIE_ASSIGN_OR_RETURN(
        dev_, read(dev,
                   choose_lines(dev.size(), 0, static_cast<uint64_t>(options_.dev_utterances),
                                options_.seed, kDevPart),
                   train_noise, kDevPart));
    AERIE_ASSIGN_OR_RETURN(
        test_, read(test,
                    choose_lines(test.size(), 0, static_cast<uint64_t>(options_.test_utterances),
                                 options_.seed, kTestPart),
                    test_noise, kTestPart));
    report_.num_train = static_cast<int64_t>(train_.size());
    report_.num_dev = static_cast<int64_t>(dev_.size());
    report_.num_test = static_cast<int64_t>(test_.size());
    report_.num_speaker_test = static_cast<int64_t>(held_out_.size());
    if (num_skipped_ > 0)
      report_.notes.push_back(str_cat(num_skipped_, " utterances could not be read"));
    return ok_status();
  }

  Result<NoiseSource> open_noise(const std::string& option, const std::string& path) {
    const std::string expanded = expand_user(path);
    if (!env_.exists(expanded))
      return invalid_argument(str_cat("there is no '", expanded, "'")).with_context(option);
    return NoiseSource::open(env_, expanded, sample_rate_);
  }

  Result<std::vector<Utterance>> read(const data::Manifest& manifest,
                                      const std::vector<uint64_t>& lines, const NoiseSource* noise,
                                      uint32_t part) {
    PartOptions options;
    options.part = part;
    options.seed = options_.seed;
    options.sample_rate = sample_rate_;
    options.min_snr_db = options_.min_snr_db;
    options.max_snr_db = options_.max_snr_db;
    options.workers = cpu_count();
    options.fields = options_.labels;
    AERIE_ASSIGN_OR_RETURN(Part found, read_part(env_, manifest, lines, noise, options));
    for (const Status& status : found.skipped) log_warn("probe", status.to_string());
    num_skipped_ += found.skipped.size();
    return std::move(found.utterances);
  }

  Status label_phonemes() {
    phoneme_.name = "phoneme";
    std::vector<std::string> names;
    for (const Utterance& utterance : train_)
      for (const Span& span : utterance.phonemes) names.push_back(span.label);
    const LabelSet set(names);
    phoneme_.num_classes = phoneme_labels_.num_classes = set.size();
    if (set.size() < 2) {
      phoneme_.skipped = "the training manifest has no phoneme alignments (`phonemes`)";
      return ok_status();
    }
    const auto labels_of = [&](const std::vector<Utterance>& part,
                               std::vector<std::vector<int64_t>>& rows, at::Tensor& flat) {
      std::vector<int64_t> all;
      for (const Utterance& utterance : part) {
        rows.push_back(frame_labels(utterance, set, frame_samples_, sample_rate_));
        std::copy_if(rows.back().begin(), rows.back().end(), std::back_inserter(all),
                     [](int64_t label) { return label >= 0; });
      }
      flat = label_tensor(all, device_);
      return static_cast<int64_t>(all.size());
    };
    phoneme_.num_train = labels_of(train_, train_rows_, phoneme_labels_.train);
    phoneme_.num_dev = labels_of(dev_, dev_rows_, phoneme_labels_.dev);
    phoneme_.num_test = labels_of(test_, test_rows_, phoneme_labels_.test);
    if (phoneme_.num_train == 0 || phoneme_.num_dev == 0 || phoneme_.num_test == 0) {
      phoneme_.skipped = "one of the manifests has no phoneme alignments (`phonemes`)";
      return ok_status();
    }
    std::set<std::string> seen, tested;
    for (const Utterance& utterance : train_) seen.insert(utterance.speaker);
    for (const Utterance& utterance : held_out_) seen.insert(utterance.speaker);
    for (const Utterance& utterance : test_)
      if (!utterance.speaker.empty()) tested.insert(utterance.speaker);
    phoneme_.num_test_speakers = static_cast<int64_t>(tested.size());
    phoneme_.num_unseen_speakers =
        std::count_if(tested.begin(), tested.end(),
                      [&](const std::string& name) { return !seen.contains(name); });
    if (phoneme_.num_unseen_speakers < phoneme_.num_test_speakers)
      report_.notes.push_back("some test voices are in the training part too");
    phoneme_.largest_class = largest_share(phoneme_labels_.train, phoneme_labels_.test, set.size());
    return ok_status();
  }

  // A task on the mean of an utterance's frames, and which utterances it uses.
  struct PooledTask {
    TaskReport report;
    Labels labels;
    std::vector<int64_t> train, dev, test;  // rows of their parts
    bool dev_held_out = false;              // `dev` are rows of held_out_ instead of dev_
  };

  PooledTask label_utterances(const std::string& field) {
    PooledTask task;
    TaskReport& report = task.report;
    report.name = field;
    const auto value_of = [&](const Utterance& utterance) {
      const auto found = utterance.labels.find(field);
      return found == utterance.labels.end() ? std::string() : found->second;
    };
    std::vector<std::string> names;
    for (const Utterance& utterance : train_)
      if (const std::string value = value_of(utterance); !value.empty()) names.push_back(value);
    const LabelSet set(names);
    report.num_classes = task.labels.num_classes = set.size();
    if (set.size() < 2) {
      report.skipped = str_cat("the training manifest does not have two values of `", field, "`");
      return task;
    }
    if (2 * static_cast<size_t>(set.size()) > names.size()) {
      report.skipped = str_cat("`", field, "` has ", set.size(), " values in ", names.size(),
                               " utterances: too few of each to learn from");
      return task;
    }
    const auto known = [&](const std::vector<Utterance>& part) {
      std::vector<int64_t> rows;
      for (size_t i = 0; i < part.size(); ++i)
        if (set.number(value_of(part[i])) < set.size()) rows.push_back(static_cast<int64_t>(i));
      return rows;
    };
    task.train = known(train_);
    task.dev = known(dev_);
    task.test = known(test_);
    // Voices of the test part should be unseen, and then have no name that could be told; what else
    // is known there is best tested on them.
    report.on_test_part = field != "speaker" && task.test.size() >= kMinUtterances;
    if (!report.on_test_part) task.test = known(held_out_);
    if (task.dev.size() < kMinUtterances) {
      // Too few in the development part: half of the held-out ones choose.
      const std::vector<int64_t> held_out = known(held_out_);
      task.dev.clear();
      std::vector<int64_t> rest;
      for (size_t i = 0; i < held_out.size(); ++i)
        (i % 2 == 0 ? rest : task.dev).push_back(held_out[i]);
      if (!report.on_test_part) task.test = std::move(rest);
      task.dev_held_out = true;
    }
    if (task.dev.empty() || task.test.empty()) {
      report.skipped = "too few utterances with known values are left for testing";
      return task;
    }
    const auto numbers = [&](const std::vector<Utterance>& part, const std::vector<int64_t>& rows) {
      std::vector<int64_t> out;
      for (const int64_t row : rows)
        out.push_back(set.number(value_of(part[static_cast<size_t>(row)])));
      return label_tensor(out, device_);
    };
    const std::vector<Utterance>& test = report.on_test_part ? test_ : held_out_;
    task.labels.train = numbers(train_, task.train);
    task.labels.dev = numbers(task.dev_held_out ? held_out_ : dev_, task.dev);
    task.labels.test = numbers(test, task.test);
    report.num_train = task.labels.train.numel();
    report.num_dev = task.labels.dev.numel();
    report.num_test = task.labels.test.numel();
    std::set<std::string> voices, seen;
    for (const Utterance& utterance : train_) seen.insert(utterance.speaker);
    for (const int64_t row : task.test) {
      const std::string& voice = test[static_cast<size_t>(row)].speaker;
      if (!voice.empty()) voices.insert(voice);
    }
    report.num_test_speakers = static_cast<int64_t>(voices.size());
    report.num_unseen_speakers =
        std::count_if(voices.begin(), voices.end(),
                      [&](const std::string& name) { return !seen.contains(name); });
    report.largest_class = largest_share(task.labels.train, task.labels.test, set.size());
    return task;
  }

  Status probe_sources() {
    const size_t utterances = train_.size() + held_out_.size() + dev_.size() + test_.size();
    const size_t num_sources = 2 + (options_.random_weights ? 1 : 0) + (options_.log_mel ? 1 : 0);
    Progress progress({.label = "probe",
                       .total = static_cast<uint64_t>(utterances * num_sources),
                       .unit = "utterances"});
    AERIE_RETURN_IF_ERROR(
        probe_source(encoder_source("trained", *restored_.model), progress, "trained model"));
    if (options_.random_weights) {
      AERIE_ASSIGN_OR_RETURN(const config::ModelConfig config,
                             ckpt::model_config_of(restored_.model_node));
      config::NestAerieConfig aerie;
      // Any seed but the one a model was probably trained with.
      aerie.seed = mix64(options_.seed);
      AERIE_ASSIGN_OR_RETURN(const auto random, nest::NestModel::create(config, aerie, device_));
      AERIE_RETURN_IF_ERROR(
          probe_source(encoder_source("random", *random), progress, "random weights"));
    }
    if (options_.log_mel)
      AERIE_RETURN_IF_ERROR(probe_source(log_mel_source(*restored_.model), progress, "log-mel"));
    return probe_source(energy_source(*restored_.model), progress, "energy");
  }

  // Computes the tables of one kind of features, fits every layer, forgets the tables.
  Status probe_source(const FeatureSource& source, Progress& progress, const std::string& note) {
    progress.set_note(note);
    const bool phoneme = phoneme_.skipped.empty();
    bool utterances = false, on_test_part = false;
    for (const PooledTask& task : pooled_) {
      utterances = utterances || task.report.skipped.empty();
      on_test_part = on_test_part || (task.report.skipped.empty() && task.report.on_test_part);
    }
    const auto done = [&](size_t count) { progress.add(count); };
    const auto table = [&](const std::vector<Utterance>& part, bool pooled,
                           const std::vector<std::vector<int64_t>>* rows) -> Result<FeatureTable> {
      TableRequest request;
      request.frames = phoneme && rows != nullptr;
      request.pooled = utterances && pooled;
      request.labels = rows;
      if (part.empty() || (!request.frames && !request.pooled)) {
        done(part.size());
        return FeatureTable();
      }
      return make_table(source, part, request, done);
    };
    AERIE_ASSIGN_OR_RETURN(FeatureTable train, table(train_, true, &train_rows_));
    AERIE_ASSIGN_OR_RETURN(FeatureTable dev, table(dev_, true, &dev_rows_));
    AERIE_ASSIGN_OR_RETURN(FeatureTable test, table(test_, on_test_part, &test_rows_));
    AERIE_ASSIGN_OR_RETURN(FeatureTable held_out, table(held_out_, true, nullptr));
    if (phoneme) {
      Matrices matrices{std::move(train.frames), std::move(dev.frames), std::move(test.frames)};
      AERIE_RETURN_IF_ERROR(score(source, matrices, phoneme_labels_, phoneme_));
    }
    const auto rows_of = [&](const std::vector<at::Tensor>& layers,
                             const std::vector<int64_t>& rows) {
      std::vector<at::Tensor> out;
      for (const at::Tensor& layer : layers)
        out.push_back(layer.index_select(0, label_tensor(rows, layer.device())));
      return out;
    };
    for (PooledTask& task : pooled_) {
      if (!task.report.skipped.empty()) continue;
      Matrices matrices{
          rows_of(train.pooled, task.train),
          rows_of(task.dev_held_out ? held_out.pooled : dev.pooled, task.dev),
          rows_of(task.report.on_test_part ? test.pooled : held_out.pooled, task.test)};
      AERIE_RETURN_IF_ERROR(score(source, matrices, task.labels, task.report));
    }
    return ok_status();
  }

  Status score(const FeatureSource& source, Matrices& matrices, const Labels& labels,
               TaskReport& task) {
    MinimizeOptions minimize;
    minimize.max_iterations = options_.max_iterations;
    const size_t layers = matrices.train.size();
    SourceScore score{source.name, source.has_layers, {}, {}, {}, 0};
    score.dev.resize(layers);
    score.test.resize(layers);
    score.l2.resize(layers);
    const auto fit_layer = [&](size_t layer) -> Status {
      if (const int signal = caught_signal(); signal != 0)
        return cancelled(str_cat("stopped by ", signal_name(signal)));
      AERIE_ASSIGN_OR_RETURN(
          ProbeFitter fitter,
          ProbeFitter::create(matrices.train[layer], labels.train, labels.num_classes));
      matrices.train[layer] = at::Tensor();
      AERIE_ASSIGN_OR_RETURN(
          const LinearProbe probe,
          fitter.fit_and_choose(options_.l2, matrices.dev[layer], labels.dev, minimize));
      AERIE_ASSIGN_OR_RETURN(score.dev[layer], probe.accuracy(matrices.dev[layer], labels.dev));
      AERIE_ASSIGN_OR_RETURN(score.test[layer], probe.accuracy(matrices.test[layer], labels.test));
      score.l2[layer] = probe.l2();
      log_debug("probe", task.name, " ", source.name, " layer ", layer + 1, ": l2 ", probe.l2(),
                ", loss ", probe.loss(), " after ", probe.iterations(), " iterations, dev ",
                score.dev[layer], ", test ", score.test[layer]);
      return ok_status();
    };
    const auto fit_named = [&](size_t layer) -> Status {
      return with_context(fit_layer(layer),
                          str_cat(task.name, ", ", source.name, ", layer ", layer + 1));
    };
    if (device_.is_cpu()) {
      // One thread per layer rather than several in each operation: the same bits on any number of
      // cores, and nobody waits for the slowest of many short pieces.
      const SingleThreadedTorch single;
      ThreadPool pool({.name = "fit", .num_threads = single.threads_before()});
      AERIE_RETURN_IF_ERROR(pool.parallel_for(layers, fit_named));
    } else {
      for (size_t layer = 0; layer < layers; ++layer) AERIE_RETURN_IF_ERROR(fit_named(layer));
    }
    for (size_t layer = 1; layer < layers; ++layer)
      if (score.dev[layer] > score.dev[score.best]) score.best = layer;
    task.sources.push_back(std::move(score));
    return ok_status();
  }

  const ProbeOptions& options_;
  Env& env_;
  at::Device device_ = at::kCPU;
  ckpt::RestoredModel restored_;
  int64_t sample_rate_ = 0;
  int64_t frame_samples_ = 0;
  std::vector<Utterance> train_, held_out_, dev_, test_;
  uint64_t num_skipped_ = 0;
  std::vector<std::vector<int64_t>> train_rows_, dev_rows_, test_rows_;  // per utterance
  Labels phoneme_labels_;
  TaskReport phoneme_;
  std::vector<PooledTask> pooled_;
  ProbeReport report_;
};

}  // namespace

Status ProbeOptions::validate() const {
  const auto positive = [](const char* name, int64_t value, int64_t low) -> Status {
    if (value >= low && value <= 10'000'000) return ok_status();
    return invalid_argument(str_cat(name, " ", value, " is not between ", low, " and 10000000"));
  };
  AERIE_RETURN_IF_ERROR(positive("--train-utterances", train_utterances, 1));
  AERIE_RETURN_IF_ERROR(positive("--dev-utterances", dev_utterances, 1));
  AERIE_RETURN_IF_ERROR(positive("--test-utterances", test_utterances, 1));
  AERIE_RETURN_IF_ERROR(positive("--speaker-utterances", speaker_utterances, 0));
  AERIE_RETURN_IF_ERROR(positive("--max-iterations", max_iterations, 1));
  if (!(min_snr_db <= max_snr_db) || !(min_snr_db >= -100.0) || !(max_snr_db <= 100.0))
    return invalid_argument(str_cat("--snr-min ", min_snr_db, " and --snr-max ", max_snr_db,
                                    " are not between -100 and 100 in this order"));
  for (const std::string& label : labels)
    if (label.empty() || label == "phonemes" || label == "phoneme" ||
        std::count(labels.begin(), labels.end(), label) > 1)
      return invalid_argument(str_cat("--label '", label, "' is not a field of utterances"))
          .with_hint("phonemes are always probed; name other fields, each once");
  if (l2.empty()) return invalid_argument("--l2 is empty");
  for (const double weight : l2)
    if (!(weight >= 0.0 && weight <= 1e6))
      return invalid_argument(str_cat("--l2 ", weight, " is not between 0 and 1000000"));
  if (!noise_test.empty() && noise.empty()) return invalid_argument("--noise-test without --noise");
  return ok_status();
}

Result<ProbeReport> run_probe(const ProbeOptions& options, Env& env) {
  AERIE_RETURN_IF_ERROR(options.validate());
  try {
    return Prober(options, env).run();
  } catch (const std::bad_alloc&) {
    return out_of_memory("no host memory left").with_hint("fewer --train-utterances");
  } catch (const std::exception& error) {
    return internal_error(nn::torch_message(error)).with_context("probe");
  }
}

}  // namespace aerie::probe
