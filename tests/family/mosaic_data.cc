#include "mosaic_data.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"
#include "aerie/data/batch_assembler.h"
#include "aerie/data/dataset.h"
#include "aerie/data/loader.h"

namespace aerie::mosaic {

namespace {

constexpr int64_t kMaxSide = 4096;

struct Pgm {
  int64_t width = 0, height = 0;
  std::string pixels;
};

Result<Pgm> read_pgm(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const std::string bytes, env.read_file(path, 64 << 20));
  Pgm out;
  long long width = 0, height = 0, most = 0;
  int head = 0;
  if (std::sscanf(bytes.c_str(), "P5 %lld %lld %lld%n", &width, &height, &most, &head) != 3 ||
      width < 1 || height < 1 || width > kMaxSide || height > kMaxSide || most != 255)
    return data_error("not a binary PGM of 8 bits").with_context(path);
  out.width = width;
  out.height = height;
  out.pixels = bytes.substr(std::min(bytes.size(), static_cast<size_t>(head) + 1));
  if (out.pixels.size() != static_cast<size_t>(width * height))
    return data_error(
               str_cat(out.pixels.size(), " pixels where ", width, " x ", height, " are promised"))
        .with_context(path);
  return out;
}

class PictureSet final : public data::Dataset {
 public:
  PictureSet(Env& env, std::string folder, std::vector<std::string> names, Pgm first)
      : env_(env),
        folder_(std::move(folder)),
        names_(std::move(names)),
        width_(first.width),
        height_(first.height) {
    auto set = std::make_shared<data::SampleSet>();
    set->groups.push_back({0, static_cast<uint32_t>(names_.size()), {}});
    samples_ = std::move(set);
  }
  const std::shared_ptr<const data::SampleSet>& samples() const override { return samples_; }
  uint64_t fingerprint() const override { return xxhash64(join(names_, "\n")); }
  std::string describe(uint64_t i) const override { return folder_ + "/" + names_[i] + ".pgm"; }

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }
  Status read(uint64_t i, const char* ending, uint8_t* out) const {
    const std::string path = folder_ + "/" + names_[i] + ending;
    AERIE_ASSIGN_OR_RETURN(const Pgm picture, read_pgm(env_, path));
    if (picture.width != width_ || picture.height != height_)
      return data_error(str_cat(picture.width, " x ", picture.height, " where others have ", width_,
                                " x ", height_))
          .with_context(path);
    std::memcpy(out, picture.pixels.data(), picture.pixels.size());
    return ok_status();
  }

 private:
  Env& env_;
  std::string folder_;
  std::vector<std::string> names_;
  int64_t width_, height_;
  std::shared_ptr<const data::SampleSet> samples_;
};

class PictureBatch final : public data::Batch {};

class PictureSlot final : public data::BatchSlot {
 public:
  PictureSlot(const PictureSet& set, const data::BatchMemory& memory)
      : set_(set), memory_(memory) {}
  ~PictureSlot() override { memory_.give_back(block_); }
  data::Batch& batch() override { return batch_; }
  Status begin() override {
    bad_.assign(batch_.samples().size(), ok_status());
    bad_items_.clear();
    return memory_.take(block_, 2 * bytes_of(batch_.samples().size()));
  }
  data::ItemFigures read_item(size_t i, data::AssemblerThread&) override {
    const uint32_t sample = batch_.samples()[i].sample;
    bad_[i] = set_.read(sample, ".pgm", row(0, i));
    if (bad_[i].ok()) bad_[i] = set_.read(sample, ".label.pgm", row(1, i));
    return {static_cast<int64_t>(2 * bytes_of(1)), 1.0, 0};
  }
  Status finish(data::AssemblerThread&) override {
    auto& samples = batch_.mutable_samples();
    size_t kept = 0;
    for (size_t i = 0; i < bad_.size(); ++i) {
      if (!bad_[i].ok()) {
        bad_items_.push_back({samples[i], bad_[i]});
        continue;
      }
      for (const int array : {0, 1})
        if (kept != i) std::memcpy(row(array, kept), row(array, i), bytes_of(1));
      samples[kept++] = samples[i];
    }
    samples.resize(kept);
    auto& ids = batch_.mutable_sample_ids();
    ids.clear();
    for (const data::PlannedSample& sample : samples) ids.push_back(sample.sample);
    auto& arrays = batch_.mutable_arrays();
    arrays.clear();
    const std::array<int64_t, 4> shape{static_cast<int64_t>(kept), set_.height(), set_.width(), 0};
    arrays.push_back({"image", Dtype::kU8, shape, 3, row(0, 0)});
    arrays.push_back({"label", Dtype::kU8, shape, 3, row(1, 0)});
    return ok_status();
  }
  std::span<const data::BadItem> bad_items() const override { return bad_items_; }

 private:
  size_t bytes_of(size_t rows) const {
    return rows * static_cast<size_t>(set_.width() * set_.height());
  }
  uint8_t* row(int array, size_t i) const {
    return static_cast<uint8_t*>(block_.data()) +
           bytes_of(static_cast<size_t>(array) * bad_.size() + i);
  }

  const PictureSet& set_;
  const data::BatchMemory& memory_;
  PictureBatch batch_;
  data::HostBlock block_;
  std::vector<Status> bad_;
  std::vector<data::BadItem> bad_items_;
};

class PictureAssembler final : public data::BatchAssembler {
 public:
  explicit PictureAssembler(std::shared_ptr<const PictureSet> set) : set_(std::move(set)) {}
  Result<data::BatchSizes> measure(const data::Sampler& sampler, const data::EpochPlan&) override {
    data::BatchSizes out;
    out.usual_bytes = 2 * uint64_t{sampler.max_batch_size()} *
                      static_cast<uint64_t>(set_->width() * set_->height());
    return out;
  }
  std::unique_ptr<data::BatchSlot> make_slot() override {
    return std::make_unique<PictureSlot>(*set_, memory());
  }
  std::unique_ptr<data::AssemblerThread> make_thread() override {
    return std::make_unique<data::AssemblerThread>();
  }

 private:
  std::shared_ptr<const PictureSet> set_;
};

}  // namespace

Pictures pictures_of(const data::Batch& batch) {
  const data::HostArray* image = batch.find("image");
  const data::HostArray* label = batch.find("label");
  return {image->shape[0], image->shape[1], image->shape[2], image->as<uint8_t>(),
          label->as<uint8_t>()};
}

Result<std::unique_ptr<train::LoaderSource>> open_pictures(Env& env, const std::string& folder,
                                                           int64_t batch_size, bool shuffle,
                                                           uint64_t seed) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  std::vector<std::string> names;
  for (const DirEntry& entry : entries)
    if (ends_with(entry.name, ".pgm") && !ends_with(entry.name, ".label.pgm"))
      names.push_back(entry.name.substr(0, entry.name.size() - 4));
  std::sort(names.begin(), names.end());
  if (names.empty()) return data_error("no pictures (*.pgm) there").with_context(folder);
  AERIE_ASSIGN_OR_RETURN(Pgm first, read_pgm(env, folder + "/" + names[0] + ".pgm"));
  auto set = std::make_shared<PictureSet>(env, folder, std::move(names), std::move(first));
  data::SamplingConfig sampling;
  sampling.batch_size = batch_size;
  sampling.shuffle = shuffle;
  data::LoaderConfig config;
  config.num_workers = 2;
  data::LoaderOptions options;
  options.seed = seed;
  options.quiet = true;
  options.check_machine = false;
  AERIE_ASSIGN_OR_RETURN(
      auto loader,
      data::Loader::make(set, std::make_unique<PictureAssembler>(set), sampling, config, options));
  return std::make_unique<train::LoaderSource>(std::move(loader));
}

}  // namespace aerie::mosaic
