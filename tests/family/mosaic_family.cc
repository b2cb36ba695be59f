#include "mosaic_family.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "mosaic_data.h"
#include "mosaic_engine.h"

namespace aerie::mosaic {

namespace {

struct MosaicConfig : config::LoopConfig {
  std::string images;      // folder of the training pictures
  std::string validation;  // and of others
  int64_t batch_size = 4;
  double lr = 0.5;
  int64_t decay_step = 1'000'000;  // from then on a tenth of lr
  std::string text;                // as read: config.yaml
};

class MosaicConfiguration final : public models::Configuration {
 public:
  explicit MosaicConfiguration(MosaicConfig config) : config_(std::move(config)) {}
  const MosaicConfig& config() const { return config_; }

 private:
  MosaicConfig config_;
};

train::TaskInfo mosaic_task() {
  train::TaskInfo task;
  task.name = "Mosaic";
  task.family = "mosaic";
  task.train_loss = "loss";
  task.eval_loss = "eval_loss";
  task.monitor = "mIoU";
  task.monitor_max = true;
  task.amount = "images";
  task.throughput = "images_per_s";
  task.throughput_unit = "images/s";
  task.eval_metrics = [](const train::EvalAccumulator& all) {
    std::vector<std::pair<std::string, double>> out{{"mIoU", 0.0}};
    const auto at = [&](size_t truth, size_t said) { return all.sums()[truth * kClasses + said]; };
    for (size_t c = 0; c < kClasses && !all.sums().empty(); ++c) {
      double either = -at(c, c);
      for (size_t k = 0; k < kClasses; ++k) either += at(c, k) + at(k, c);
      const double iou = either > 0.0 ? at(c, c) / either : 0.0;
      out.front().second += iou / static_cast<double>(kClasses);
      out.emplace_back(str_cat("IoU_", c), iou);
    }
    return out;
  };
  return task;
}

ui::ReportWords mosaic_words() {
  const train::TaskInfo task = mosaic_task();
  ui::ReportWords out;
  out.train_loss = task.train_loss;
  out.eval_loss = task.eval_loss;
  out.loss_unit = "nats a pixel";
  out.monitor = task.monitor;
  out.monitor_max = true;
  out.throughput = task.throughput;
  out.throughput_text = "images per second";
  out.throughput_head = "images/s";
  out.shares = {{"pixel_accuracy", "pixels that were right"}};
  out.charts = {
      {"Intersection over union", "%", true, {{"mIoU", "mean"}, {"IoU_0", "sky"}}, 100.0}};
  out.data_settings = {{"images", "training pictures"}};
  return out;
}

class StepDecay final : public train::LearningRates {
 public:
  StepDecay(double lr, int64_t step) : lr_(lr), step_(step) {}
  std::vector<double> at(int64_t step) const override { return {step < step_ ? lr_ : 0.1 * lr_}; }

 private:
  double lr_;
  int64_t step_;
};

class MosaicJob final : public train::Job {
 public:
  explicit MosaicJob(const MosaicConfig& config) : config_(config), task_(mosaic_task()) {}

  const train::TaskInfo& task() const override { return task_; }
  const config::LoopConfig& config() const override { return config_; }
  Result<std::string> config_yaml() const override { return config_.text; }
  ui::ReportWords report_words() const override { return mosaic_words(); }
  std::vector<std::string> eval_metric_names() const override {
    return {"mIoU", "IoU_0", "IoU_1", "IoU_2"};
  }

  Result<train::JobData> open_data(const train::DataOptions& options) override {
    train::JobData out;
    AERIE_ASSIGN_OR_RETURN(
        out.train, open_pictures(*options.env, config_.images, config_.batch_size, /*shuffle=*/true,
                                 config_.aerie.seed));
    AERIE_ASSIGN_OR_RETURN(auto validation,
                           open_pictures(*options.env, config_.validation, config_.batch_size,
                                         /*shuffle=*/false, config_.aerie.seed));
    out.sets.push_back({"", validation.get(), validation->batches_per_epoch()});
    out.evaluation.push_back(std::move(validation));
    out.loader = "pictures";
    out.training_amount = str_cat(out.train->batches_per_epoch(), " batches of pictures");
    return out;
  }
  Result<train::BuiltEngine> make_engine(const train::EngineOptions&) override {
    train::BuiltEngine out;
    out.engine = std::make_unique<MosaicEngine>();
    out.base_rates = {config_.lr};
    out.parts = {{"classifier", out.engine->num_parameters(), 0}};
    return out;
  }
  Status load_initial_weights(Env&, train::BuiltEngine&) override { return ok_status(); }
  Result<train::TrainState> import_checkpoint(Env&, train::BuiltEngine&,
                                              const std::string& path) override {
    return unsupported("mosaic reads its own checkpoints only: " + path);
  }
  Result<std::unique_ptr<train::LearningRates>> make_rates(const std::vector<double>& base_rates,
                                                           const train::Cadence&) override {
    return std::unique_ptr<train::LearningRates>(
        std::make_unique<StepDecay>(base_rates[0], config_.decay_step));
  }
  Result<train::Exports> exports(Env&) override { return train::Exports(); }

 private:
  const MosaicConfig& config_;
  const train::TaskInfo task_;
};

class MosaicFamily final : public models::Family {
 public:
  std::string_view name() const override { return "mosaic"; }
  ui::ReportWords report_words() const override { return mosaic_words(); }
  Result<std::unique_ptr<train::Job>> make_job(const models::Configuration& config) const override {
    return std::unique_ptr<train::Job>(
        std::make_unique<MosaicJob>(static_cast<const MosaicConfiguration&>(config).config()));
  }
};

// Where a key's value goes. A value that cannot be read leaves an error.
using Setters = std::map<std::string, std::function<bool(const std::string&)>>;
Setters setters_of(MosaicConfig& config) {
  const auto integer = [](int64_t& out) {
    return [&out](const std::string& text) {
      const auto value = parse_int64(text);
      if (value.ok()) out = *value;
      return value.ok();
    };
  };
  const auto words = [](std::string& out) {
    return [&out](const std::string& text) {
      out = text;
      return true;
    };
  };
  return {{"name", words(config.name)},
          {"images", words(config.images)},
          {"validation", words(config.validation)},
          {"runs", words(config.exp_manager.exp_dir)},
          {"batch_size", integer(config.batch_size)},
          {"accumulate", integer(config.trainer.accumulate_grad_batches)},
          {"max_iters", integer(config.trainer.max_steps)},
          {"decay_iter", integer(config.decay_step)},
          {"eval_interval", integer(config.trainer.val_check_interval.count)},
          {"log_interval", integer(config.trainer.log_every_n_steps)},
          {"lr", [&config](const std::string& text) {
             const auto value = parse_double(text);
             if (value.ok()) config.lr = *value;
             return value.ok();
           }}};
}

class MosaicDialect final : public models::Dialect {
 public:
  std::string_view name() const override { return "mosaic"; }
  const models::Family& family() const override { return mosaic_family(); }
  bool accepts(const std::vector<std::string>& args) const override {
    return !args.empty() && ends_with(args[0], ".mosaic");
  }
  Result<std::unique_ptr<models::Configuration>> load(
      const std::vector<std::string>& args) const override {
    AERIE_ASSIGN_OR_RETURN(const std::string file, Env::real().read_file(args[0], 1 << 20));
    MosaicConfig config;
    config.trainer.accelerator = config::Accelerator::kCpu;
    config.trainer.num_sanity_val_steps = 0;
    config.trainer.check_val_every_n_epoch.reset();  // intervals count iterations of the run
    config.trainer.val_check_interval = {false, 0.0, 100};
    config.exp_manager.present = true;
    config.exp_manager.resume_if_exists = true;
    config.exp_manager.resume_ignore_no_checkpoint = true;
    config.exp_manager.checkpoint_callback_params.monitor = "mIoU";
    config.exp_manager.checkpoint_callback_params.mode_max = true;
    config.exp_manager.checkpoint_callback_params.save_nemo_on_train_end = false;
    config.aerie.step_unit = config::StepUnit::kMicro;
    const Setters setters = setters_of(config);
    std::vector<std::pair<std::string, std::string>> lines;  // text, where it stands
    int64_t number = 0;
    for (const std::string& line : split(file, '\n'))
      lines.emplace_back(line.substr(0, line.find('#')), str_cat(args[0], ":", ++number));
    for (size_t i = 1; i < args.size(); ++i) lines.emplace_back(args[i], "command line");
    for (const auto& [line, where] : lines) {
      if (trim(line).empty()) continue;
      const size_t equals = line.find('=');
      const std::string key(trim(line.substr(0, equals)));
      const auto found = setters.find(key);
      if (equals == std::string::npos || found == setters.end()) {
        std::vector<std::string> known;
        for (const auto& [one, set] : setters) known.push_back(one);
        return invalid_argument(str_cat(where, ": unknown key '", key, "'"))
            .with_hint(str_cat("did you mean '", nearest_name(key, known), "'?"));
      }
      const std::string value(trim(line.substr(equals + 1)));
      if (!found->second(value))
        return invalid_argument(str_cat(where, ": ", key, ": '", value, "' is no number"));
      config.text += str_cat(key, ": ", value, "\n");
    }
    config.exp_manager.name = config.name;
    return std::unique_ptr<models::Configuration>(
        std::make_unique<MosaicConfiguration>(std::move(config)));
  }
};

}  // namespace

const models::Family& mosaic_family() {
  static const MosaicFamily family;
  return family;
}

const models::Dialect& mosaic_dialect() {
  static const MosaicDialect dialect;
  return dialect;
}

}  // namespace aerie::mosaic
