// What opening the data of a run has in common, whatever its samples are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/data/loader.h"
#include "aerie/train/job.h"

namespace aerie::train {

// overfit_batches is given.
bool overfits(const config::TrainerConfig& trainer);

// Of the batches of an evaluation set.
config::BatchLimit evaluation_limit(const config::TrainerConfig& trainer, bool test);
// Batches to use of an evaluation set that has `available`. Lightning's rule: a share that leaves
// nothing is a mistake, a plain 0 is a wish.
Result<int64_t> evaluation_batches(const config::TrainerConfig& trainer, bool test,
                                   int64_t available, const char* node);
// The seed of the loaders of evaluations, whose draws come from streams of their own.
uint64_t evaluation_seed(uint64_t seed);

// What the config names and nobody finds is wrong data, not a failed run.
Status data_status(const Status& status, const char* node);

// The part of a loader's options that follows from the run.
void set_loader_options(const DataOptions& options, const config::TrainerConfig& trainer,
                        bool pin_memory, data::LoaderOptions& out);

// JobData::changes of a loader, which outlives it.
std::function<std::vector<std::string>(const std::string& previous_cursor)> changes_of(
    const data::Loader& loader);

}  // namespace aerie::train
