#include "aerie/models/bev/run/bev_data.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "aerie/base/philox.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/data/cursor.h"
#include "aerie/data/nuscenes/nuscenes_assembler.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/train/loader_source.h"
#include "aerie/train/pinned_memory.h"
#include "aerie/train/run_changes.h"

namespace aerie::bev {
namespace {

bool overfits(const config::TrainerConfig& trainer) {
  const config::BatchLimit& limit = trainer.overfit_batches;
  return limit.is_fraction ? limit.fraction > 0.0 : limit.count > 0;
}

config::BatchLimit evaluation_limit(const config::TrainerConfig& trainer, bool test) {
  if (trainer.fast_dev_run > 0) return {false, 0.0, trainer.fast_dev_run};
  if (test) return trainer.limit_test_batches;
  return overfits(trainer) ? trainer.overfit_batches : trainer.limit_val_batches;
}

// What the config names and nobody finds is wrong data, not a failed run.
Status data_status(const Status& status, const char* node) {
  if (status.code() != StatusCode::kNotFound) return Status(status).with_context(node);
  Status out = data_error(status.message()).with_hint(status.hint());
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return std::move(out).with_context(node);
}

class Opener {
 public:
  Opener(const BevRunConfig& run, const train::DataOptions& options)
      : run_(run), options_(options) {}

  Result<std::unique_ptr<train::LoaderSource>> open(const nuscenes::DataConfig& config,
                                                    uint64_t seed, bool quiet, bool read_ahead) {
    nuscenes::NuscenesDataset::Options open;
    open.env = options_.env;
    open.seed = run_.aerie.seed;
    open.quiet = quiet;
    // Training and validation are usually splits of one folder, whose tables are read once.
    if (opened_ != nullptr && opened_->config().root == config.root &&
        opened_->config().version == config.version &&
        opened_->config().cache_dir == config.cache_dir)
      open.index = opened_->shared_index();
    AERIE_ASSIGN_OR_RETURN(opened_, nuscenes::NuscenesDataset::open(config, open));
    data::LoaderOptions loader;
    loader.seed = seed;
    loader.rank = options_.rank;
    loader.world = options_.world;
    loader.quiet = quiet;
    loader.read_ahead = read_ahead;
    loader.consumer_batches =
        static_cast<int>(std::max<int64_t>(2, run_.trainer.accumulate_grad_batches + 1));
    if (options_.gpu && config.pin_memory)
      loader.allocator = train::pinned_memory(options_.gpu_index);
    if (options_.bad_samples != nullptr) {
      loader.earlier_bad = options_.bad_samples->earlier();
      loader.on_bad_sample = [log = options_.bad_samples](const data::BadSample& bad) {
        log->add(bad);
      };
    }
    AERIE_ASSIGN_OR_RETURN(auto made, nuscenes::make_nuscenes_loader(opened_, run_.aerie, loader));
    return std::make_unique<train::LoaderSource>(std::move(made));
  }
  const std::shared_ptr<const nuscenes::NuscenesDataset>& opened() const { return opened_; }
  // "320 samples of 8 scenes", of the set opened last.
  std::string amount() const {
    const uint64_t entries = opened_->samples()->size();
    return str_cat(group_digits(entries), entries == 1 ? " sample" : " samples");
  }

 private:
  const BevRunConfig& run_;
  const train::DataOptions& options_;
  std::shared_ptr<const nuscenes::NuscenesDataset> opened_;
};

}  // namespace

uint64_t evaluation_seed(const BevRunConfig& run) {
  return mix64(run.aerie.seed ^ (static_cast<uint64_t>(Purpose::kValidation) << 32));
}

Result<train::JobData> open_bev_data(const BevRunConfig& run, const train::DataOptions& options,
                                     std::shared_ptr<const nuscenes::NuscenesDataset>* evaluated) {
  if (evaluated != nullptr) evaluated->reset();
  train::JobData out;
  Opener opener(run, options);
  const bool overfit = overfits(run.trainer);
  if (options.train) {
    nuscenes::DataConfig config = run.data.train_ds;
    if (overfit) config.shuffle = false;
    auto source = opener.open(config, run.aerie.seed, options.quiet, /*read_ahead=*/true);
    if (!source.ok()) return data_status(source.status(), "model.train_ds");
    data::Loader& loader = (*source)->loader();
    out.loader = loader.description();
    out.training_amount = opener.amount();
    out.changes = [&loader](const std::string& previous) {
      const auto before = data::Cursor::parse(previous);
      return before.ok() ? train::data_changes(*before, loader.cursor())
                         : std::vector<std::string>();
    };
    out.train = std::move(source).value();
  }
  if (!options.validation && !options.test) return out;
  const auto& dataset = options.test ? run.data.test_ds : run.data.validation_ds;
  if (!dataset) return out;
  const char* node = options.test ? "model.test_ds" : "model.validation_ds";
  const config::BatchLimit limit = evaluation_limit(run.trainer, options.test);
  // Nothing is evaluated: its data need not be there.
  if (!limit.is_fraction && limit.count == 0) return out;
  const uint64_t seed = evaluation_seed(run);
  // Beside training, whose first batch would otherwise share the processors with this.
  auto source = opener.open(*dataset, seed, /*quiet=*/true, /*read_ahead=*/!options.train);
  if (!source.ok()) return data_status(source.status(), node);
  const int64_t available = (*source)->batches_per_epoch();
  const int64_t batches = limit.of(available);
  // Lightning's rule: a share that leaves nothing is a mistake, a plain 0 is a wish.
  if (batches == 0 && available > 0 && limit.is_fraction && limit.fraction > 0.0)
    return invalid_argument(str_cat("trainer: a share of ", limit.fraction, " of the ", available,
                                    " batches of ", node, " is less than one batch"))
        .with_hint(str_cat("set it to at least ", 1.0 / static_cast<double>(available),
                           ", or to 0 for none"));
  out.validation_amount = opener.amount();
  if (evaluated != nullptr) *evaluated = opener.opened();
  out.sets.push_back({"", source->get(), batches});
  out.evaluation.push_back(std::move(source).value());
  return out;
}

}  // namespace aerie::bev
