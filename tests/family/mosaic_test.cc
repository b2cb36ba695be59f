// A second family through the whole engine: its table holds nothing else.
#include <csignal>
#include <cstdlib>
#include <set>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/hash.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/metrics/metrics_log.h"
#include "mosaic_family.h"

namespace aerie::mosaic {
namespace {

const models::Families& families() {
  static const models::Families all{{&mosaic_family()}, {&mosaic_dialect()}};
  return all;
}

void write(const std::string& path, const std::string& text) {
  ASSERT_TRUE(Env::real().atomic_replace(path, text).ok()) << path;
}

// Sky above, ground below, bright houses between them; the horizon moves from picture to picture.
void make_pictures(const std::string& folder, int count, uint64_t seed) {
  constexpr int kHeight = 12, kWidth = 16;
  ASSERT_TRUE(Env::real().create_dirs(folder).ok());
  uint64_t state = seed;
  const auto draw = [&state](int most) {
    state = mix64(state + 1);
    return static_cast<int>(state % static_cast<uint64_t>(most));
  };
  for (int n = 0; n < count; ++n) {
    std::string image = str_cat("P5\n", kWidth, " ", kHeight, "\n255\n"), label = image;
    const int horizon = 4 + draw(3);
    for (int y = 0; y < kHeight; ++y)
      for (int x = 0; x < kWidth; ++x) {
        const bool house = y >= horizon && y < horizon + 3 && x / 4 % 2 == 0;
        const int grey = house ? 220 : y < horizon ? 120 : 40;
        image += static_cast<char>(grey + draw(30) - 15);
        label += static_cast<char>(house ? 2 : y < horizon ? 0 : 1);
      }
    write(str_cat(folder, "/p", n, ".pgm"), image);
    write(str_cat(folder, "/p", n, ".label.pgm"), label);
  }
}

class MosaicRun {
 public:
  MosaicRun() {
    make_pictures(dir_.file("train"), 22, 1);
    make_pictures(dir_.file("val"), 6, 2);
    write(dir_.file("run.mosaic"),
          str_cat("# a run\nimages = ", dir_.file("train"), "\nvalidation = ", dir_.file("val"),
                  "\nruns = ", dir_.file("runs"),
                  "\nname = town\nmax_iters = 60\neval_interval = 20\n"
                  "accumulate = 2\nlog_interval = 5\n"));
  }
  Result<train::RunResult> train(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), dir_.file("run.mosaic"));
    AERIE_ASSIGN_OR_RETURN(const models::Opened opened,
                           models::open_configuration(families(), more));
    train::RunOptions options;
    options.command = "mosaic_test";
    options.env = &Env::real();
    options.quiet = true;
    return models::train(opened, options);
  }
  std::string file(const std::string& name) const { return dir_.file(name); }
  std::vector<metrics::Record> records(const std::string& name, metrics::RecordKind kind) const {
    std::vector<metrics::Record> out;
    const auto file =
        metrics::read_metrics(Env::real(), dir_.file("runs/" + name + "/metrics.jsonl"));
    if (file.ok())
      for (const metrics::Record& record : file->records)
        if (record.kind() == kind) out.push_back(record);
    return out;
  }

 private:
  TempDir dir_;
};

std::string weights_of(const train::RunResult& result) {
  const auto bytes = Env::real().read_file(result.last_checkpoint + "/model.safetensors", 1 << 20);
  return bytes.ok() ? *bytes : bytes.status().to_string();
}

TEST(MosaicTest, TrainsValidatesSavesAndReports) {
  const MosaicRun run;
  const auto result = run.train();
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->stop_sentence, "finished after step 60");
  EXPECT_TRUE(result->healthy);

  std::vector<int64_t> steps;
  std::vector<double> miou;
  for (const metrics::Record& record : run.records("town", metrics::RecordKind::kVal)) {
    steps.push_back(record.step());
    double value = 0.0, loss = 0.0;
    ASSERT_TRUE(record.number("mIoU", &value) && record.number("eval_loss", &loss));
    miou.push_back(value);
  }
  // Iterations are counted, not updates: 60 of them are 30 updates of two.
  EXPECT_EQ(steps, (std::vector<int64_t>{20, 40, 60}));
  EXPECT_GT(miou.back(), 0.8);
  EXPECT_GT(miou.back(), miou.front());

  double accuracy = 0.0, throughput = 0.0;
  const auto train = run.records("town", metrics::RecordKind::kTrain);
  ASSERT_FALSE(train.empty());
  EXPECT_TRUE(train.back().number("pixel_accuracy", &accuracy));
  EXPECT_GT(accuracy, 0.8);
  EXPECT_TRUE(train.back().number("images_per_s", &throughput));
  EXPECT_FALSE(train.back().number("audio_s_per_s", &throughput));

  // Names of checkpoints hold the family's metric; the best is the highest.
  EXPECT_NE(result->best_checkpoint.find("mIoU="), std::string::npos) << result->best_checkpoint;
  const auto page = Env::real().read_file(result->report, 8 << 20);
  ASSERT_TRUE(page.ok());
  for (const char* text : {"Intersection over union", "images per second", "mIoU, best",
                           "pixels that were right", "training pictures"})
    EXPECT_NE(page->find(text), std::string::npos) << text;
  for (const char* text : {"audio", ">val_loss", "masked"})
    EXPECT_EQ(page->find(text), std::string::npos) << text;
}

TEST(MosaicTest, AResumedRunIsTheRunThatWasNotStopped) {
  const MosaicRun run;
  const auto whole = run.train({"name=whole"});
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto half = run.train({"name=parts", "max_iters=26"});
  ASSERT_TRUE(half.ok()) << half.status().to_string();
  const auto rest = run.train({"name=parts"});
  ASSERT_TRUE(rest.ok()) << rest.status().to_string();
  EXPECT_EQ(rest->step, 60);
  EXPECT_EQ(weights_of(*rest), weights_of(*whole));
  EXPECT_NE(weights_of(*half), weights_of(*whole));
}

TEST(MosaicTest, ABadPictureIsNamedAndLeftOut) {
  const MosaicRun run;
  write(run.file("train/p3.pgm"), "P5\n16 12\n255\nshort");
  auto result = run.train({"name=strict"});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().to_string().find("p3.pgm"), std::string::npos)
      << result.status().to_string();
  EXPECT_EQ(exit_code_for(result.status().code()), 3);
}

TEST(MosaicTest, MistakesInAConfigurationAreNamed) {
  const MosaicRun run;
  const auto unknown = run.train({"max_itres=5"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().to_string().find("did you mean 'max_iters'"), std::string::npos);
  EXPECT_FALSE(run.train({"lr=fast"}).ok());
  // No dialect takes it: the table holds this family's alone.
  const auto other = models::open_configuration(families(), {"--config-name=nest_quickstart"});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().to_string().find("mosaic"), std::string::npos);
}

}  // namespace
}  // namespace aerie::mosaic
