// Batches of nuScenes data do not depend on threads, on where a run was interrupted, or on where
// pictures come from.
#include <algorithm>
#include <csignal>
#include <set>
#include <sys/wait.h>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/data/nuscenes/pack/picture_packer.h"
#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/data/nuscenes/test_root.h"

namespace aerie::nuscenes {
namespace {

using data::Batch;
using data::HostArray;
using data::Loader;

TEST(NuscenesLoaderTest, ABatchHoldsWhatTheContractSays) {
  const TestRoot root;
  DataConfig config = root.config();
  config.gt = {};
  config.batch_size = 3;
  const auto dataset = TestRoot::open(config);
  ASSERT_EQ(dataset->size(), 8u);
  auto loader = TestRoot::loader(config, 2);
  const Batch* batch = *loader->next();
  ASSERT_NE(batch, nullptr);
  const auto shape = [&](const char* name) {
    const HostArray* array = batch->find(name);
    EXPECT_NE(array, nullptr) << name;
    return std::vector<int64_t>(array->shape.begin(), array->shape.begin() + array->dims);
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape("img"), (Shape{18, 32, 88, 3}));
  for (const char* name : {"camera2lidar", "intrin", "img_aug"})
    EXPECT_EQ(shape(name), (Shape{3, 6, 4, 4}));
  EXPECT_EQ(shape("bev_aug"), (Shape{3, 4, 4}));
  EXPECT_EQ(shape("gt"), (Shape{3, 6, 200, 200}));
  EXPECT_EQ(shape("tokens"), (Shape{3, 2}));

  // Piece by piece, from the parts themselves.
  CameraReader camera_reader;
  GroundTruthMaker maker = *GroundTruthMaker::make(dataset->rules().gt);
  const NuscenesIndex& index = dataset->index();
  std::vector<uint8_t> gt(maker.num_bytes());
  size_t cells = 0;
  for (size_t i = 0; i < 3; ++i) {
    const uint64_t entry = batch->samples()[i].sample;
    const uint32_t sample = dataset->sample_of(entry);
    EXPECT_EQ(batch->sample_ids()[i], sample);
    const Token token = index.sample(sample).token;
    EXPECT_EQ(batch->find("tokens")->as<uint64_t>()[2 * i], token.hi);
    EXPECT_EQ(batch->find("tokens")->as<uint64_t>()[2 * i + 1], token.lo);
    const SampleFrames frames = *sample_frames(index, sample, ReferenceFrame::kLidar, true);
    const auto equals = [&](const char* name, size_t at, const Mat4& want) {
      std::array<float, 16> values;
      to_floats(want, values);
      const float* got = batch->find(name)->as<float>() + 16 * at;
      EXPECT_TRUE(std::equal(values.begin(), values.end(), got)) << name << " " << at;
    };
    for (int c = 0; c < 6; ++c) {
      const CameraFrame frame = index.camera(sample, c);
      const ImageAugmentation draw =
          draw_image_augmentation(dataset->rules().image, 160, 90, 11, 0, entry, c);
      const std::string bytes = *Env::real().read_file(index.path(frame));
      image::Image want(88, 32);
      ASSERT_TRUE(camera_reader
                      .read({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, draw,
                            DecodeMode::kExact, want.mutable_view())
                      .ok());
      const size_t at = 6 * i + static_cast<size_t>(c);
      const uint8_t* got = batch->find("img")->as<uint8_t>() + at * want.bytes();
      EXPECT_TRUE(std::equal(got, got + want.bytes(), want.row(0))) << i << " " << c;
      equals("camera2lidar", at, frames.camera_to_reference[static_cast<size_t>(c)]);
      equals("intrin", at, with_rotation(frames.intrinsic[static_cast<size_t>(c)]));
      equals("img_aug", at, draw.matrix());
    }
    const BevAugmentation bev = draw_bev_augmentation(dataset->rules().bev, 11, 0, entry);
    equals("bev_aug", i, bev.matrix());
    ASSERT_TRUE(maker.draw(*dataset->map_of(sample), frames.lidar_to_global, bev, gt.data()).ok());
    const uint8_t* got = batch->find("gt")->as<uint8_t>() + i * gt.size();
    EXPECT_TRUE(std::equal(gt.begin(), gt.end(), got));
    cells += static_cast<size_t>(std::count(gt.begin(), gt.end(), 1));
  }
  EXPECT_GT(cells, 1000u);
  loader->release(batch);
}

TEST(NuscenesLoaderTest, OrderPicturesAndMasksDoNotDependOnWorkers) {
  const TestRoot root(10);
  for (const SamplerType sampler : {SamplerType::kRandom, SamplerType::kCbgs}) {
    DataConfig config = root.config();
    config.sampler.type = sampler;
    const std::vector<uint64_t> want = TestRoot::hashes(*TestRoot::loader(config, 0), 10);
    EXPECT_EQ(std::set<uint64_t>(want.begin(), want.end()).size(), want.size());
    for (const int64_t workers : {1, 3, 8})
      EXPECT_EQ(TestRoot::hashes(*TestRoot::loader(config, workers), 10), want) << workers;
  }
  // Epochs draw anew; an evaluation draws nothing.
  const DataConfig val = root.config(DataRole::kValidation);
  auto loader = TestRoot::loader(val, 0);
  const auto first_picture = [&] {
    const Batch* batch = *loader->next();
    const uint8_t* img = batch->find("img")->as<uint8_t>();
    std::vector<uint8_t> out(img, img + 32 * 88 * 3);
    loader->release(batch);
    return out;
  };
  const std::vector<uint8_t> in_epoch_0 = first_picture();
  ASSERT_TRUE(loader->start_epoch(1).ok());
  EXPECT_EQ(first_picture(), in_epoch_0);
}

TEST(NuscenesLoaderTest, FiveOfSixCamerasAndVehicles) {
  const TestRoot root;
  DataConfig config = root.config();
  config.num_cameras = 5;
  config.gt.task = GtTaskChoice::kVehicle;
  config.reference_frame = ReferenceFrameChoice::kEgo;
  auto loader = TestRoot::loader(config, 2);
  const Batch* batch = *loader->next();
  EXPECT_EQ(batch->find("img")->shape[0], 10);
  EXPECT_EQ(batch->find("gt")->shape[1], 1);
  loader->release(batch);
  // Names give the order.
  config.num_cameras = 0;
  config.cameras = {"CAM_BACK", "CAM_FRONT"};
  auto named = TestRoot::loader(config, 0);
  batch = *named->next();
  EXPECT_EQ(batch->find("camera2lidar")->shape[1], 2);
  named->release(batch);
}

TEST(NuscenesLoaderTest, TheRestIsTheSameFromAnyBatch) {
  const TestRoot root;
  const DataConfig config = root.config();
  constexpr size_t kAll = 9;  // into the third epoch
  const std::vector<uint64_t> all = TestRoot::hashes(*TestRoot::loader(config, 0), kAll);
  for (size_t done = 0; done < kAll; ++done) {
    auto first = TestRoot::loader(config, static_cast<int64_t>(done % 4));
    ASSERT_EQ(TestRoot::hashes(*first, done),
              std::vector<uint64_t>(all.begin(), all.begin() + done));
    const std::string cursor = first->cursor_json();
    auto second = TestRoot::loader(config, static_cast<int64_t>((done + 1) % 3));
    ASSERT_TRUE(second->restore(cursor).ok());
    EXPECT_EQ(TestRoot::hashes(*second, kAll - done),
              std::vector<uint64_t>(all.begin() + done, all.end()))
        << done;
  }
  // Another order of the same samples is other data.
  DataConfig other = config;
  other.split = "val";
  const Status refused =
      TestRoot::loader(other, 0)->restore(TestRoot::loader(config, 0)->cursor_json());
  EXPECT_NE(refused.to_string().find("another split"), std::string::npos) << refused.to_string();
}

// Processes are killed as the kernel does it; the next one goes on from the last cursor.
TEST(NuscenesLoaderTest, TheRestIsTheSameAfterTwentyKilledProcesses) {
  struct Record {
    uint64_t hash;
    uint64_t cursor_bytes;
    char cursor[2000];
  };
  const TestRoot root;
  const DataConfig config = root.config();
  const std::vector<uint64_t> all = TestRoot::hashes(*TestRoot::loader(config, 0), 12);
  RandomStream random(2, Purpose::kTest, 0, 0);
  size_t done = 0;
  int killed_count = 0;
  std::string cursor;
  while (killed_count < 20) {
    const auto workers = static_cast<int64_t>(random.below(4));
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      {
        auto loader = TestRoot::loader(config, workers);
        if (!cursor.empty() && !loader->restore(cursor).ok()) ::_exit(2);
        for (size_t b = done; b < all.size(); ++b) {
          Record record{};
          record.hash = TestRoot::next_hash(*loader);
          const std::string now = loader->cursor_json();
          record.cursor_bytes = now.copy(record.cursor, sizeof(record.cursor));
          if (::write(ends[1], &record, sizeof(record)) != sizeof(record)) ::_exit(3);
        }
      }
      ::_exit(0);
    }
    ::close(ends[1]);
    const size_t wanted = random.below(3);  // batches before it is killed
    size_t seen = 0;
    bool killed = false;
    Record record;
    while (true) {
      if (!killed && seen >= wanted) {
        Clock::real().sleep_ns(static_cast<int64_t>(random.below(3'000'000)));
        ::kill(child, SIGKILL);
        killed = true;
        ++killed_count;
      }
      const ssize_t got = ::read(ends[0], &record, sizeof(record));
      if (got != sizeof(record)) {
        ASSERT_EQ(got, 0);
        break;
      }
      ++seen;
      ASSERT_LT(done, all.size());
      ASSERT_EQ(record.hash, all[done++]) << "after " << killed_count << " kills";
      cursor.assign(record.cursor, record.cursor_bytes);
    }
    ::close(ends[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (done == all.size()) {
      done = 0;
      cursor.clear();
    }
  }
}

// What an epoch delivers and what it reports, in any order of threads.
struct Outcome {
  std::multiset<uint32_t> seen;
  std::vector<std::string> bad;
  Status status;
};
Outcome run_epoch(const DataConfig& config, int64_t workers, Env* env = nullptr) {
  DataConfig own = config;
  own.num_workers = workers;
  Outcome out;
  data::LoaderOptions options = TestRoot::loader_options();
  options.single_epoch = true;
  options.on_bad_sample = [&](const data::BadSample& bad) {
    out.bad.push_back(str_cat(bad.place, ": ", bad.reason));
  };
  RetryPolicy retry;
  retry.first_wait_s = 0.0001;
  retry.total_s = 0.02;
  auto loader = make_nuscenes_loader(TestRoot::open(own, env), {}, options, retry);
  EXPECT_TRUE(loader.ok()) << loader.status().to_string();
  while (true) {
    const Result<const Batch*> batch = (*loader)->next();
    out.status = batch.status();
    if (!batch.ok() || *batch == nullptr) break;
    out.seen.insert((*batch)->sample_ids().begin(), (*batch)->sample_ids().end());
    EXPECT_EQ((*batch)->find("img")->shape[0], 6 * (*batch)->num_samples());
    (*loader)->release(*batch);
  }
  EXPECT_EQ((*loader)->stats().bad_samples, out.bad.size());
  return out;
}

TEST(NuscenesLoaderTest, HostilePicturesAreNamedCountedAndLeftOut) {
  const TestRoot root(6);
  const std::string good = TestRoot::jpeg_bytes(TestRoot::picture(160, 90, 99));
  // Sample, what is wrong, what the report says of it.
  const std::string huge = [&] {
    std::string bytes = good;  // SOF0: height and width
    const size_t at = bytes.find("\xff\xc0");
    EXPECT_NE(at, std::string::npos);
    for (size_t i = 5; i < 9; ++i) bytes[at + i] = '\xff';
    return bytes;
  }();
  root.write(TestRoot::picture_name(0, 0), good.substr(0, good.size() / 2));
  root.write(TestRoot::picture_name(1, 1), std::string("PK\x03\x04") + std::string(3000, 'z'));
  root.write(TestRoot::picture_name(2, 2), huge);
  root.write(TestRoot::picture_name(3, 3), "");
  root.write(TestRoot::picture_name(4, 4),
             TestRoot::jpeg_bytes(TestRoot::picture(90, 160, 3)));  // upright
  ASSERT_TRUE(Env::real().remove_file(root.path(TestRoot::picture_name(5, 5))).ok());
  // These are pictures all the same: progressive, another size of the same shape.
  root.write(TestRoot::picture_name(7, 0),
             TestRoot::jpeg_bytes(TestRoot::picture(160, 90, 5), {.progressive = true}));
  root.write(TestRoot::picture_name(8, 1), TestRoot::jpeg_bytes(TestRoot::picture(320, 180, 6)));
  DataConfig config = root.config();
  Outcome first;
  for (const int64_t workers : {0, 3}) {
    const Outcome got = run_epoch(config, workers);
    EXPECT_TRUE(got.status.ok()) << got.status.to_string();
    // A missing file is known from the start: its sample is no part of the split.
    EXPECT_EQ(got.seen.size(), 12u - 6u);
    EXPECT_EQ(got.bad.size(), 5u);
    for (const int sample : {0, 1, 2, 3, 4}) {
      const std::string name = TestRoot::picture_name(sample, sample);
      const bool named = std::any_of(got.bad.begin(), got.bad.end(), [&](const std::string& text) {
        return text.find(name) != std::string::npos && text.find("scene-0061") == 0;
      });
      EXPECT_TRUE(named) << name;
    }
    if (workers == 0) first = got;
    EXPECT_EQ(got.bad, first.bad);
    EXPECT_EQ(got.seen, first.seen);
  }
  // Too many of them, or none at all wanted.
  config.max_bad_fraction = 0.1;
  const Status many = run_epoch(config, 2).status;
  EXPECT_EQ(many.code(), StatusCode::kDataError);
  EXPECT_NE(many.to_string().find("raise model.train_ds.max_bad_fraction"), std::string::npos)
      << many.to_string();
  EXPECT_EQ(many.to_string().find("aerie.max_bad"), std::string::npos) << many.to_string();
  config.max_bad_fraction = 1.0;
  config.on_bad_sample = OnBadSample::kFail;
  const Status failed = run_epoch(config, 2).status;
  EXPECT_EQ(failed.code(), StatusCode::kDataError);
  EXPECT_NE(failed.to_string().find("samples/CAM_"), std::string::npos) << failed.to_string();
}

TEST(NuscenesLoaderTest, WhatPassesIsTriedAgainAndNobodyIsBlamed) {
  const TestRoot root;
  const DataConfig config = root.config();
  FaultEnv env(Env::real());
  const auto dataset = TestRoot::open(config, &env);
  RetryPolicy retry;
  retry.first_wait_s = 0.0001;
  retry.total_s = 1.0;
  data::LoaderOptions options = TestRoot::loader_options();
  options.single_epoch = true;
  auto loader = *make_nuscenes_loader(dataset, {}, options, retry);
  for (const int error : {EMFILE, ESTALE, EINTR}) env.fail_at(7, FaultOp::kRead, error);
  size_t seen = 0;
  while (const Batch* batch = *loader->next()) {
    seen += static_cast<size_t>(batch->num_samples());
    loader->release(batch);
  }
  EXPECT_EQ(seen, 8u);
  EXPECT_EQ(loader->stats().bad_samples, 0u);
  // What does not pass ends the run.
  retry.total_s = 0.001;
  loader = *make_nuscenes_loader(dataset, {}, options, retry);
  for (uint64_t nth = 1; nth < 60; ++nth) env.fail_at(nth, FaultOp::kRead, EMFILE);
  const auto batch = loader->next();
  ASSERT_FALSE(batch.ok());
  EXPECT_EQ(batch.status().code(), StatusCode::kUnavailable);
  env.clear_faults();
}

TEST(NuscenesLoaderTest, MemoryIsBudgetedAndSettingsAreChecked) {
  const TestRoot root;
  DataConfig config = root.config();
  config.num_workers = 2;
  config::AerieConfig aerie;
  aerie.data.memory_budget_gib = 1e-6;
  const auto dataset = TestRoot::open(config);
  const auto refused = make_nuscenes_loader(dataset, aerie, TestRoot::loader_options());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().to_string().find("batch_size, image.size or num_workers"),
            std::string::npos)
      << refused.status().to_string();
  aerie.data.memory_budget_gib = 0.2;
  auto loader = *make_nuscenes_loader(dataset, aerie, TestRoot::loader_options());
  EXPECT_LE(loader->memory_bytes(), static_cast<uint64_t>(0.2 * 1073741824.0));
  EXPECT_EQ(TestRoot::hashes(*loader, 6), TestRoot::hashes(*TestRoot::loader(config, 0), 6));

  DataConfig wrong = root.config();
  wrong.root.clear();
  const auto open = [](const DataConfig& one) {
    NuscenesDataset::Options options;
    options.quiet = true;
    return NuscenesDataset::open(one, options).status();
  };
  EXPECT_EQ(open(wrong).code(), StatusCode::kInvalidArgument);
  wrong = root.config();
  wrong.split = "trian";
  EXPECT_FALSE(open(wrong).ok());
  wrong = root.config();
  wrong.pack_dir = root.file("nowhere");
  EXPECT_NE(open(wrong).to_string().find("there is no pack"), std::string::npos);
  ASSERT_TRUE(Env::real().remove_file(root.path("maps/expansion/singapore-onenorth.json")).ok());
  EXPECT_NE(open(root.config()).to_string().find("map expansion"), std::string::npos);
}

// An epoch goes through the samples several times, with other draws every time.
TEST(NuscenesLoaderTest, SamplesRepeatWithDrawsOfTheirOwn) {
  const TestRoot root;
  DataConfig config = root.config();
  const auto once = TestRoot::open(config);
  const size_t count = once->samples()->size();
  config.sampler.repeat = 3;
  const auto thrice = TestRoot::open(config);
  ASSERT_EQ(thrice->samples()->size(), 3 * count);
  EXPECT_NE(thrice->fingerprint(), once->fingerprint());
  for (size_t i = 0; i < 3 * count; ++i)
    EXPECT_EQ(thrice->sample_of(i), once->sample_of(i % count));
  const auto reader = *SampleReader::make(*thrice);
  EXPECT_NE(reader->bev_augmentation(0, 0, 1).rotation,
            reader->bev_augmentation(count, 0, 1).rotation);
  const auto batches = static_cast<size_t>(3 * count / static_cast<size_t>(config.batch_size));
  EXPECT_EQ(TestRoot::hashes(*TestRoot::loader(config, 0), batches),
            TestRoot::hashes(*TestRoot::loader(config, 3), batches));
}

TEST(NuscenesLoaderTest, APackGivesTheSameBatchesAsFiles) {
  const TestRoot root;
  DataConfig config = root.config();
  const std::vector<uint64_t> want = TestRoot::hashes(*TestRoot::loader(config, 0), 6);
  const auto dataset = TestRoot::open(config);
  PicturePackOptions pack;
  pack.index = dataset->shared_index();
  pack.samples = dataset->split().samples;
  pack.out_dir = root.file("pack");
  pack.shard_bytes = 60'000;
  pack.workers = 3;
  pack.decode = true;
  // Not among the files of the data set.
  for (const char* place : {"", "/", "/.", "/samples", "/samples/../maps/x", "/v1.0-mini/pack"}) {
    PicturePackOptions inside = pack;
    inside.out_dir = str_cat(dataset->index().root(), place);
    const Status status = pack_pictures(inside).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << place;
    EXPECT_NE(status.to_string().find("folder of its own"), std::string::npos);
  }
  // Interrupted first.
  int calls = 0;
  PicturePackHooks stop;
  stop.stop = [&] { return ++calls > 1; };
  EXPECT_EQ(pack_pictures(pack, stop).status().code(), StatusCode::kCancelled);
  PicturePackReport report = *pack_pictures(pack);
  EXPECT_EQ(report.num_packed + report.num_reused, 48u);
  EXPECT_GT(report.num_reused, 0u);
  report = *pack_pictures(pack);
  EXPECT_EQ(report.num_reused, 48u);
  config.pack_dir = pack.out_dir;
  EXPECT_EQ(TestRoot::open(config)->num_packed(), 48u);
  for (const int64_t workers : {0, 3})
    EXPECT_EQ(TestRoot::hashes(*TestRoot::loader(config, workers), 6), want);
  // The files are no longer needed.
  ASSERT_TRUE(Env::real().remove_tree(root.path("samples")).ok());
  EXPECT_EQ(TestRoot::hashes(*TestRoot::loader(config, 2), 6), want);

  // A flipped bit costs the sample it belongs to; a cut file ends the start.
  const std::string shard = join_path(pack.out_dir, "pack_00000.aerie-pack");
  std::string bytes = *Env::real().read_file(shard);
  const std::string kept = bytes;
  bytes[200] = static_cast<char>(bytes[200] ^ 1);
  ASSERT_TRUE(Env::real().atomic_replace(shard, bytes).ok());
  const Outcome hurt = run_epoch(config, 2);
  EXPECT_EQ(hurt.seen.size(), 7u);
  ASSERT_EQ(hurt.bad.size(), 1u);
  EXPECT_NE(hurt.bad[0].find("checksum"), std::string::npos) << hurt.bad[0];
  NuscenesDataset::Options options;
  options.quiet = true;
  for (const size_t size : {size_t{0}, size_t{100}, kept.size() / 2, kept.size() - 1}) {
    ASSERT_TRUE(Env::real().atomic_replace(shard, kept.substr(0, size)).ok());
    const Status cut = NuscenesDataset::open(config, options).status();
    EXPECT_FALSE(cut.ok());
    EXPECT_NE(cut.to_string().find("pack_00000"), std::string::npos) << cut.to_string();
  }
}

}  // namespace
}  // namespace aerie::nuscenes
