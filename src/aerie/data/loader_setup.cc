#include "aerie/data/loader_setup.h"

#include <algorithm>

#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/storage.h"

namespace aerie::data {

namespace {

constexpr int kMaxWorkers = 1024;
constexpr int kAutoSlots = 8;

}  // namespace

Result<Sampler::Options> loader_sampler_options(const LoaderConfig& config,
                                                const LoaderOptions& options) {
  Sampler::Options out;
  out.seed = options.seed;
  out.compat_nemo = config.compat_nemo;
  out.shuffle_level = config.shuffle_level;
  out.packing = options.packing;
  constexpr int64_t kMaxLanes = 1 << 20;
  const int64_t lanes = config.virtual_ranks.value_or(options.world);
  if (lanes < 1 || lanes > kMaxLanes)
    return invalid_argument(
        str_cat("aerie.data.virtual_ranks must be 1 to ", kMaxLanes, ", got ", lanes));
  if (lanes % options.world != 0)
    return invalid_argument(str_cat("aerie.data.virtual_ranks=", lanes,
                                    " is no multiple of the number of ranks, ", options.world));
  out.virtual_ranks = static_cast<uint32_t>(lanes);
  return out;
}

Status LoaderConfig::validate() const {
  const bool automatic = num_workers == kAutoWorkers;
  if (!automatic && (num_workers < 0 || num_workers > kMaxWorkers))
    return invalid_argument(
        str_cat("num_workers must be 0 to ", kMaxWorkers, " or auto, got ", num_workers));
  if (num_workers == 0 && prefetch_factor)
    return invalid_argument("prefetch_factor must be null when num_workers is 0")
        .with_hint(
            "batches are then loaded in the training thread; set num_workers to use "
            "prefetching");
  if (num_workers == 0 && persistent_workers)
    return invalid_argument("persistent_workers must be false when num_workers is 0")
        .with_hint("there are no workers to keep; set num_workers or persistent_workers=false");
  if (prefetch_factor && (*prefetch_factor < 1 || *prefetch_factor > 1024))
    return invalid_argument(str_cat("prefetch_factor must be 1 to 1024, got ", *prefetch_factor));
  return ok_status();
}

Result<LoaderSetup> set_up_loader(const Dataset& dataset, BatchAssembler& assembler,
                                  const LoaderConfig& config, const LoaderOptions& options,
                                  const Sampler& sampler) {
  LoaderSetup setup;
  setup.example_path = dataset.example_path();
  if (!setup.example_path.empty()) setup.storage = storage_info(setup.example_path);
  setup.left_out = dataset.left_out();
  setup.lanes_per_rank = sampler.num_lanes() / options.world;
  setup.fixed_lanes = config.virtual_ranks.has_value();
  setup.first_plan = sampler.plan(0);
  if (setup.first_plan->num_steps() == 0)
    return invalid_argument(str_cat("no batch can be made of ", dataset.size(),
                                    " samples: ", sampler.max_batch_size(), " per batch, ",
                                    sampler.num_lanes(), " ranks, drop_last"))
        .with_hint("lower batch_size or set drop_last=false");
  AERIE_ASSIGN_OR_RETURN(setup.sizes, assembler.measure(sampler, *setup.first_plan));
  const BatchSizes& sizes = setup.sizes;

  setup.auto_workers = config.num_workers == LoaderConfig::kAutoWorkers;
  setup.num_workers = setup.auto_workers ? cpu_count() : static_cast<int>(config.num_workers);
  setup.prefetch_factor = static_cast<int>(config.prefetch_factor.value_or(2));
  setup.worker_bytes = static_cast<uint64_t>(std::max(1, setup.num_workers) * sizes.worker_bytes);

  const int consumer = std::max(1, options.consumer_batches);
  int ahead = setup.num_workers == 0 ? 0 : setup.num_workers * setup.prefetch_factor;
  if (setup.auto_workers) ahead = std::min(ahead, std::max(kAutoSlots, setup.prefetch_factor));
  const uint64_t available = memory_info().available_bytes;
  const uint64_t limit =
      config.memory_budget_gib
          ? static_cast<uint64_t>(std::max(0.0, *config.memory_budget_gib) * 1073741824.0)
          : (available > 0 ? available / 2 : ~uint64_t{0});
  const auto total = [&](int slots) {
    return static_cast<uint64_t>(slots) * sizes.usual_bytes + setup.worker_bytes;
  };
  const int least = setup.num_workers == 0 ? consumer : consumer + 1;
  const int wanted = std::max(least, ahead + consumer);
  int slots = wanted;
  while (slots > least && total(slots) > limit) --slots;
  if (total(slots) > limit && config.memory_budget_gib)
    return invalid_argument(str_cat("aerie.data.memory_budget_gib=", *config.memory_budget_gib,
                                    " is too little: ", slots, " batches of ",
                                    human_bytes(static_cast<double>(sizes.usual_bytes)), " and ",
                                    setup.num_workers, " workers need ",
                                    human_bytes(static_cast<double>(total(slots)))))
        .with_hint(str_cat("raise it, or lower ", assembler.size_keys(), " or num_workers"));
  // Not one batch would fit, however the ring is cut.
  const uint64_t memory = memory_info().total_bytes;
  if (!config.memory_budget_gib && memory > 0 && total(least) > memory)
    return assembler.too_large(sizes.usual_bytes, memory);
  if (slots < wanted && !options.quiet)
    log_warn("data", "the ring holds ", slots, " batches instead of ", wanted, " (",
             human_bytes(static_cast<double>(total(wanted))),
             "): ", config.memory_budget_gib ? "aerie.data.memory_budget_gib" : "free memory",
             " allows no more; lower num_workers or prefetch_factor");
  setup.num_slots = slots;
  // Samples that do not tell their length may need more than planned, and so may those that are
  // packed in another order in the next epoch.
  uint64_t spare = sizes.unknown_lengths ? std::max<uint64_t>(total(slots), uint64_t{1} << 30)
                                         : std::max<uint64_t>(sizes.usual_bytes, 64 << 20);
  if (sampler.packs_as_lhotse()) {
    const uint64_t room = limit - std::min(limit, total(slots));
    spare = std::max(spare, std::min(room, static_cast<uint64_t>(slots) * sizes.most_bytes));
  }
  setup.budget_bytes =
      config.memory_budget_gib ? std::max(limit, total(slots)) : total(slots) + spare;
  return setup;
}

void warn_about_machine(const Dataset& dataset, const LoaderSetup& setup) {
  if (const std::string& path = setup.example_path; !path.empty()) {
    const StorageInfo& storage = setup.storage;
    if (storage.network)
      log_warn("data", parent_path(path), " is on a network file system (", storage.filesystem,
               "): ", dataset.storage_advice(storage));
    else if (storage.rotational)
      log_warn("data", parent_path(path),
               " is on a rotating disk: ", dataset.storage_advice(storage));
  }
  const int cores = cpu_count();
  if (!setup.auto_workers && setup.num_workers > cores)
    log_warn("data", "num_workers=", setup.num_workers, " is more than the ", cores,
             " CPU cores of this process: set num_workers=", cores, " or auto");
  const uint64_t available = memory_info().available_bytes;
  if (available > 0 && setup.budget_bytes > available)
    log_warn("data", "the loader may use ", human_bytes(static_cast<double>(setup.budget_bytes)),
             " but only ", human_bytes(static_cast<double>(available)),
             " are free: lower num_workers, prefetch_factor or batch_size, or set "
             "aerie.data.memory_budget_gib");
}

}  // namespace aerie::data
