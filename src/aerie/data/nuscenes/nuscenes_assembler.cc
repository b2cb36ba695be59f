#include "aerie/data/nuscenes/nuscenes_assembler.h"

#include <algorithm>
#include <cstring>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/sample_reader.h"

namespace aerie::nuscenes {
namespace {

using data::HostArray;

uint64_t aligned(uint64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Bytes of one sample in each array, and where the arrays begin in a block.
struct Layout {
  enum Array { kImg, kCamera2lidar, kIntrin, kImgAug, kBevAug, kGt, kTokens, kArrays };
  std::array<uint64_t, kArrays> row{};
  std::array<uint64_t, kArrays> begin{};
  uint64_t bytes = 0;

  Layout(const NuscenesDataset& dataset, uint64_t samples) {
    const ReadRules& rules = dataset.rules();
    const auto cameras = static_cast<uint64_t>(rules.cameras_per_sample);
    const uint64_t matrix = 16 * sizeof(float);
    const bool map = rules.gt.task == MaskTask::kMap;
    const uint64_t masks = map ? rules.gt.classes.size() : 1;
    row = {
        cameras * 3 * static_cast<uint64_t>(rules.height()) * static_cast<uint64_t>(rules.width()),
        cameras * matrix,
        cameras * matrix,
        cameras * matrix,
        matrix,
        masks * static_cast<uint64_t>(rules.gt.x.cells()) *
            static_cast<uint64_t>(rules.gt.y.cells()),
        2 * sizeof(uint64_t)};
    for (int a = 0; a < kArrays; ++a) {
      begin[a] = bytes;
      bytes += aligned(samples * row[a]);
    }
  }
};

struct ReadThread final : data::AssemblerThread {
  std::unique_ptr<SampleReader> reader;
};

class NuscenesSlot final : public data::BatchSlot {
 public:
  NuscenesSlot(std::shared_ptr<const NuscenesDataset> dataset, uint64_t seed,
               const data::BatchMemory& memory)
      : dataset_(std::move(dataset)), seed_(seed), memory_(memory), layout_(*dataset_, 0) {}
  ~NuscenesSlot() override { memory_.give_back(block_); }

  data::Batch& batch() override { return batch_; }

  Status begin() override {
    const size_t count = batch_.samples().size();
    layout_ = Layout(*dataset_, count);
    errors_.assign(count, ok_status());
    bad_.clear();
    return memory_.take(block_, std::max(memory_.usual_bytes, layout_.bytes), [&] {
      data::MemoryWords words;
      words.what = str_cat("a batch of ", count, " samples");
      words.budget_hint = "raise aerie.data.memory_budget_gib, or lower batch_size or image.size";
      return words;
    });
  }

  data::ItemFigures read_item(size_t i, data::AssemblerThread& any) override {
    auto& thread = static_cast<ReadThread&>(any);
    const data::PlannedSample planned = batch_.samples()[i];
    SampleRows rows;
    rows.img = row<uint8_t>(Layout::kImg, i);
    rows.camera2lidar = row<float>(Layout::kCamera2lidar, i);
    rows.intrin = row<float>(Layout::kIntrin, i);
    rows.img_aug = row<float>(Layout::kImgAug, i);
    rows.bev_aug = row<float>(Layout::kBevAug, i);
    rows.gt = row<uint8_t>(Layout::kGt, i);
    const Token token = dataset_->index().sample(dataset_->sample_of(planned.sample)).token;
    uint64_t* const halves = row<uint64_t>(Layout::kTokens, i);
    halves[0] = token.hi;
    halves[1] = token.lo;
    SampleFigures figures;
    // The entry, not its place in the epoch: the same draws however batches are cut.
    errors_[i] = thread.reader->read(planned.sample, batch_.epoch(), seed_, rows, figures);
    return {figures.bytes_read, errors_[i].ok() ? 1.0 : 0.0, figures.gt_ns};
  }

  Status finish(data::AssemblerThread&) override {
    std::vector<data::PlannedSample>& samples = batch_.mutable_samples();
    size_t kept = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      if (!errors_[i].ok()) {
        // The machine is to blame, or the run must not go on without it.
        if (is_passing(errors_[i]) || dataset_->config().on_bad_sample == OnBadSample::kFail)
          return errors_[i].with_context(dataset_->describe(samples[i].sample));
        bad_.push_back({samples[i], errors_[i]});
        continue;
      }
      if (kept != i) {
        for (int a = 0; a < Layout::kArrays; ++a)
          std::memcpy(at(a) + kept * layout_.row[a], at(a) + i * layout_.row[a], layout_.row[a]);
        samples[kept] = samples[i];
      }
      ++kept;
    }
    samples.resize(kept);
    batch_.mutable_sample_ids().clear();
    for (const data::PlannedSample& sample : samples)
      batch_.mutable_sample_ids().push_back(dataset_->sample_id(sample.sample));
    list_arrays(static_cast<int64_t>(kept));
    return ok_status();
  }

  std::span<const data::BadItem> bad_items() const override { return bad_; }

 private:
  uint8_t* at(int array) {
    return static_cast<uint8_t*>(block_.data()) + layout_.begin[static_cast<size_t>(array)];
  }
  template <typename T>
  T* row(Layout::Array array, size_t i) {
    return reinterpret_cast<T*>(at(array) + i * layout_.row[array]);
  }

  void list_arrays(int64_t samples) {
    const ReadRules& rules = dataset_->rules();
    const int64_t cameras = rules.cameras_per_sample;
    const int64_t nx = rules.gt.x.cells(), ny = rules.gt.y.cells();
    const int64_t masks =
        static_cast<int64_t>(layout_.row[Layout::kGt]) / std::max<int64_t>(1, nx * ny);
    batch_.mutable_arrays() = {
        HostArray{"img",
                  Dtype::kU8,
                  {samples * cameras, rules.height(), rules.width(), 3},
                  4,
                  at(Layout::kImg)},
        HostArray{
            "camera2lidar", Dtype::kF32, {samples, cameras, 4, 4}, 4, at(Layout::kCamera2lidar)},
        HostArray{"intrin", Dtype::kF32, {samples, cameras, 4, 4}, 4, at(Layout::kIntrin)},
        HostArray{"img_aug", Dtype::kF32, {samples, cameras, 4, 4}, 4, at(Layout::kImgAug)},
        HostArray{"bev_aug", Dtype::kF32, {samples, 4, 4, 0}, 3, at(Layout::kBevAug)},
        HostArray{"gt", Dtype::kU8, {samples, masks, nx, ny}, 4, at(Layout::kGt)},
        HostArray{"tokens", Dtype::kU64, {samples, 2, 0, 0}, 2, at(Layout::kTokens)}};
  }

  const std::shared_ptr<const NuscenesDataset> dataset_;
  const uint64_t seed_;
  const data::BatchMemory& memory_;
  data::ArrayBatch batch_;
  data::HostBlock block_;
  Layout layout_;
  std::vector<Status> errors_;
  std::vector<data::BadItem> bad_;
};

}  // namespace

NuscenesAssembler::NuscenesAssembler(std::shared_ptr<const NuscenesDataset> dataset, uint64_t seed,
                                     const RetryPolicy& retry)
    : dataset_(std::move(dataset)), seed_(seed), retry_(retry) {}

Result<data::BatchSizes> NuscenesAssembler::measure(const data::Sampler& sampler,
                                                    const data::EpochPlan&) {
  // A thread that cannot be made would be found out too late.
  AERIE_RETURN_IF_ERROR(SampleReader::make(*dataset_, retry_).status());
  data::BatchSizes out;
  out.usual_bytes = Layout(*dataset_, sampler.max_batch_size()).bytes;
  out.worker_bytes = SampleReader::max_bytes(*dataset_);
  const ReadRules& rules = dataset_->rules();
  out.note = str_cat(rules.cameras_per_sample, " pictures of ", rules.height(), " x ",
                     rules.width(), " a sample, decoded ", decode_mode_name(rules.decode));
  return out;
}

std::unique_ptr<data::BatchSlot> NuscenesAssembler::make_slot() {
  return std::make_unique<NuscenesSlot>(dataset_, seed_, memory());
}

std::unique_ptr<data::AssemblerThread> NuscenesAssembler::make_thread() {
  auto thread = std::make_unique<ReadThread>();
  thread->reader = *SampleReader::make(*dataset_, retry_);  // measure() has made one
  return thread;
}

data::LoaderWords NuscenesAssembler::words() const {
  return {"pictured_samples", "masks", "mask_failures", "collate", "collating"};
}

data::SamplingConfig sampling_config(const DataConfig& config) {
  data::SamplingConfig out;
  out.batch_size = config.batch_size;
  out.drop_last = config.drop_last;
  out.shuffle = config.shuffle;
  return out;
}

data::LoaderConfig loader_config(const DataConfig& config, const config::AerieConfig& aerie) {
  static_assert(DataConfig::kAutoWorkers == data::LoaderConfig::kAutoWorkers);
  data::LoaderConfig out;
  out.num_workers = config.num_workers;
  out.prefetch_factor = config.prefetch_factor;
  out.persistent_workers = config.persistent_workers;
  out.virtual_ranks = aerie.data.virtual_ranks;
  out.memory_budget_gib = aerie.data.memory_budget_gib;
  out.max_bad_fraction = config.max_bad_fraction;
  return out;
}

Result<std::unique_ptr<data::Loader>> make_nuscenes_loader(
    std::shared_ptr<const NuscenesDataset> dataset, const config::AerieConfig& aerie,
    const data::LoaderOptions& options, const RetryPolicy& retry) {
  const DataConfig& config = dataset->config();
  if (config.auto_batch_size)
    return invalid_argument("batch_size is auto: `aerie train` finds it, nothing else does")
        .with_hint("set batch_size to a number here");
  auto assembler = std::make_unique<NuscenesAssembler>(dataset, options.seed, retry);
  data::LoaderConfig loading = loader_config(config, aerie);
  loading.max_bad_key = dataset->config_node() + ".max_bad_fraction";
  return data::Loader::make(std::move(dataset), std::move(assembler), sampling_config(config),
                            loading, options);
}

}  // namespace aerie::nuscenes
