#include "aerie/train/run_data.h"

#include <algorithm>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/data/cursor.h"
#include "aerie/train/pinned_memory.h"
#include "aerie/train/run_changes.h"

namespace aerie::train {

bool overfits(const config::TrainerConfig& trainer) {
  const config::BatchLimit& limit = trainer.overfit_batches;
  return limit.is_fraction ? limit.fraction > 0.0 : limit.count > 0;
}

config::BatchLimit evaluation_limit(const config::TrainerConfig& trainer, bool test) {
  if (trainer.fast_dev_run > 0) return {false, 0.0, trainer.fast_dev_run};
  if (test) return trainer.limit_test_batches;
  return overfits(trainer) ? trainer.overfit_batches : trainer.limit_val_batches;
}

Result<int64_t> evaluation_batches(const config::TrainerConfig& trainer, bool test,
                                   int64_t available, const char* node) {
  const config::BatchLimit limit = evaluation_limit(trainer, test);
  const int64_t batches = limit.of(available);
  if (batches > 0 || available == 0 || !limit.is_fraction || limit.fraction <= 0.0) return batches;
  const char* key = test                ? "limit_test_batches"
                    : overfits(trainer) ? "overfit_batches"
                                        : "limit_val_batches";
  return invalid_argument(str_cat("trainer.", key, " ", limit.fraction, " of the ", available,
                                  " batches of ", node, " is less than one batch"))
      .with_hint(str_cat("set it to at least ", 1.0 / static_cast<double>(available),
                         ", or to 0 for none"));
}

uint64_t evaluation_seed(uint64_t seed) {
  return mix64(seed ^ (static_cast<uint64_t>(Purpose::kValidation) << 32));
}

Status data_status(const Status& status, const char* node) {
  if (status.code() != StatusCode::kNotFound) return Status(status).with_context(node);
  Status out = data_error(status.message()).with_hint(status.hint());
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return std::move(out).with_context(node);
}

void set_loader_options(const DataOptions& options, const config::TrainerConfig& trainer,
                        bool pin_memory, data::LoaderOptions& out) {
  out.rank = options.rank;
  out.world = options.world;
  out.consumer_batches =
      static_cast<int>(std::max<int64_t>(2, trainer.accumulate_grad_batches + 1));
  if (options.gpu && pin_memory) out.allocator = pinned_memory(options.gpu_index);
  if (options.bad_samples == nullptr) return;
  out.earlier_bad = options.bad_samples->earlier();
  out.on_bad_sample = [log = options.bad_samples](const data::BadSample& bad) { log->add(bad); };
}

std::function<std::vector<std::string>(const std::string& previous_cursor)> changes_of(
    const data::Loader& loader) {
  return [&loader](const std::string& previous) {
    const auto before = data::Cursor::parse(previous);
    return before.ok() ? data_changes(*before, loader.cursor()) : std::vector<std::string>();
  };
}

}  // namespace aerie::train
