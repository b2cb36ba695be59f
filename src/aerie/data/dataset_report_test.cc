#include "aerie/data/dataset_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/data/test_corpus.h"

namespace aerie::data {
namespace {

std::shared_ptr<const AudioDataset> open(const config::DatasetConfig& config) {
  AudioDataset::Options options;
  options.quiet = true;
  return *AudioDataset::open(config, TestCorpus::aerie(), options);
}

TEST(DatasetReportTest, CountsWhatIsThere) {
  TestCorpus corpus(80);
  const config::DatasetConfig config = corpus.config(8);
  ReportOptions options;
  options.num_threads = 2;
  options.probes = 40;
  const DatasetReport report = *report_dataset(*open(config), config, options);
  EXPECT_EQ(report.samples, 80u);
  EXPECT_EQ(report.probed, 40u);
  EXPECT_EQ(report.probe_failures, 0u);
  EXPECT_EQ(report.codecs.at("wav"), 40u);
  EXPECT_EQ(report.sample_rates.at(16000), 40u);
  EXPECT_EQ(report.channels.at(1), 40u);
  EXPECT_NEAR(report.bytes_per_s, 32000, 600);
  uint64_t counted = 0;
  for (const HistogramBin& bin : report.histogram) counted += bin.count;
  EXPECT_EQ(counted, 80u);
  EXPECT_LE(report.p05_s, report.median_s);
  EXPECT_LE(report.median_s, report.p95_s);
  ASSERT_GE(report.padding.size(), 5u);
  // More buckets pad less.
  EXPECT_LT(report.padding.back().padding_share, report.padding[1].padding_share);
  EXPECT_EQ(report.duration_bins.size(), 7u);
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["samples"], 80);
  EXPECT_EQ(json["padding"].size(), report.padding.size());
  const std::string text = report.to_text();
  EXPECT_NE(text.find("###"), std::string::npos);
  EXPECT_NE(text.find("bucket_duration_bins"), std::string::npos);
}

TEST(ValidateTest, ListsWhatIsBrokenInOrder) {
  TestCorpus corpus(30);
  corpus.add_noise(3);
  write_file(corpus.dir.file("utt4.wav"), "junk");
  write_file(corpus.dir.file("utt9.wav"), wav_bytes(noise_samples(100, 1)));
  write_file(corpus.dir.file("utt12.wav"),
             wav_bytes(std::vector<int16_t>(corpus.samples[12].size())));
  write_file(corpus.dir.file("utt20.wav"), wav_bytes({}));
  ASSERT_TRUE(Env::real().remove_file(corpus.dir.file("noise1.wav")).ok());
  const auto dataset = open(corpus.config(4));
  for (const int threads : {1, 4}) {
    ValidateOptions options;
    options.num_threads = threads;
    std::atomic<int> seen{0};
    options.on_sample = [&] { ++seen; };
    const ValidateReport report = *validate_dataset(*dataset, options);
    EXPECT_EQ(report.checked, 33u);
    EXPECT_EQ(seen, 33);
    ASSERT_EQ(report.broken.size(), 4u);
    EXPECT_EQ(report.broken[0].kind, "unreadable");
    EXPECT_NE(report.broken[0].place.find("utt4.wav"), std::string::npos);
    EXPECT_EQ(report.broken[1].kind, "short");
    EXPECT_NE(report.broken[1].place.find("utt9.wav"), std::string::npos);
    EXPECT_NE(report.broken[2].place.find("utt20.wav"), std::string::npos);
    EXPECT_NE(report.broken[3].place.find("noise1.wav"), std::string::npos);
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_NE(report.warnings[0].place.find("utt12.wav"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(report.to_json())["broken"].size(), 4u);
  }
  ValidateOptions quick;
  quick.quick = true;
  EXPECT_EQ((*validate_dataset(*dataset, quick)).broken.size(), 4u);
  ValidateOptions stopped;
  stopped.stop = [] { return true; };
  EXPECT_EQ(validate_dataset(*dataset, stopped).status().code(), StatusCode::kCancelled);
}

TEST(ValidateTest, LinesWithoutAMemberAreBroken) {
  TestCorpus corpus(8);
  corpus.make_tar(2);
  std::ofstream(corpus.tar_manifest, std::ios::app) << TestCorpus::line("nobody.wav", 1.0);
  config::DatasetConfig config = corpus.config(4);
  config.is_tarred = true;
  config.manifest_filepath = TestCorpus::paths(corpus.tar_manifest);
  config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  const ValidateReport report = *validate_dataset(*open(config), {});
  EXPECT_EQ(report.checked, 9u);
  ASSERT_EQ(report.broken.size(), 1u);
  EXPECT_EQ(report.broken[0].kind, "missing");
  EXPECT_NE(report.broken[0].place.find(":9 (nobody.wav)"), std::string::npos)
      << report.broken[0].place;
}

}  // namespace
}  // namespace aerie::data
