#include "aerie/models/bev/run/bev_data.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/nuscenes_assembler.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/train/loader_source.h"
#include "aerie/train/run_data.h"

namespace aerie::bev {
namespace {

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
    loader.quiet = quiet;
    loader.read_ahead = read_ahead;
    train::set_loader_options(options_, run_.trainer, config.pin_memory, loader);
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

Result<train::JobData> open_bev_data(const BevRunConfig& run, const train::DataOptions& options,
                                     std::shared_ptr<const nuscenes::NuscenesDataset>* evaluated) {
  if (evaluated != nullptr) evaluated->reset();
  train::JobData out;
  Opener opener(run, options);
  const bool overfit = train::overfits(run.trainer);
  if (options.train) {
    nuscenes::DataConfig config = run.data.train_ds;
    if (overfit) config.shuffle = false;
    auto source = opener.open(config, run.aerie.seed, options.quiet, /*read_ahead=*/true);
    if (!source.ok()) return train::data_status(source.status(), "model.train_ds");
    data::Loader& loader = (*source)->loader();
    out.loader = loader.description();
    out.training_amount = opener.amount();
    out.changes = train::changes_of(loader);
    out.train = std::move(source).value();
  }
  if (!options.validation && !options.test) return out;
  const auto& dataset = options.test ? run.data.test_ds : run.data.validation_ds;
  if (!dataset) return out;
  const char* node = options.test ? "model.test_ds" : "model.validation_ds";
  const config::BatchLimit limit = train::evaluation_limit(run.trainer, options.test);
  // Nothing is evaluated: its data need not be there.
  if (!limit.is_fraction && limit.count == 0) return out;
  const uint64_t seed = train::evaluation_seed(run.aerie.seed);
  // Beside training, whose first batch would otherwise share the processors with this.
  auto source = opener.open(*dataset, seed, /*quiet=*/true, /*read_ahead=*/!options.train);
  if (!source.ok()) return train::data_status(source.status(), node);
  AERIE_ASSIGN_OR_RETURN(
      const int64_t batches,
      train::evaluation_batches(run.trainer, options.test, (*source)->batches_per_epoch(), node));
  out.validation_amount = opener.amount();
  if (evaluated != nullptr) *evaluated = opener.opened();
  out.sets.push_back({"", source->get(), batches});
  out.evaluation.push_back(std::move(source).value());
  return out;
}

}  // namespace aerie::bev
