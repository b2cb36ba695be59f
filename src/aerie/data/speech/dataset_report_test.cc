#include "aerie/data/speech/dataset_report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data::dataset_report_test {
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
  options.aerie = TestCorpus::aerie();
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

// What is printed is pasted into a configuration, which wants edges that increase.
TEST(DatasetReportTest, EdgesThatAreOneInPrintArePrintedOnce) {
  DatasetReport report;
  report.duration_bins = {1.4999999, 1.5, 1.504, 2.0};
  EXPECT_NE(report.to_text().find("bucket_duration_bins: [1.50, 2.00]   (3 buckets)"),
            std::string::npos)
      << report.to_text();
}

// Padding of a whole epoch as the loader really has it.
double loader_padding(const config::DatasetConfig& config, const config::SpeechAerieConfig& aerie) {
  SpeechLoaderOptions options;
  options.seed = aerie.seed;
  options.quiet = true;
  options.single_epoch = true;
  auto loader = *make_speech_loader(open(config), config, aerie, options);
  while (const Batch* batch = *loader->next()) loader->release(batch);
  return loader->stats().padding_share;
}

TEST(DatasetReportTest, PaddingIsThatOfTheLoader) {
  TestCorpus corpus(120);
  config::DatasetConfig config = corpus.config(8);
  {
    // Batches as they come, up to a duration: the same ones.
    config::DatasetConfig packed = config;
    packed.batch_size.reset();
    packed.batch_duration = 1.5;
    ReportOptions options;
    options.probes = 0;
    options.aerie = TestCorpus::aerie();
    const DatasetReport report = *report_dataset(*open(packed), packed, options);
    EXPECT_NEAR(report.padding[0].padding_share, loader_padding(packed, options.aerie), 1e-3);
    SpeechLoaderOptions loader_options;
    loader_options.seed = options.aerie.seed;
    loader_options.quiet = true;
    const auto loader = make_speech_loader(open(packed), packed, options.aerie, loader_options);
    ASSERT_TRUE(loader.ok()) << loader.status().to_string();
    EXPECT_EQ(report.padding[0].steps, static_cast<uint64_t>((*loader)->batches_per_epoch()));
  }
  for (const double min_s : {0.06, 0.2, 1.0})
    for (const bool drop_last : {false, true})
      for (const bool bucketing : {false, true}) {
        SCOPED_TRACE(testing::Message() << min_s << " " << drop_last << " " << bucketing);
        config.drop_last = drop_last;
        config.use_bucketing = bucketing;
        config.num_buckets = 4;
        ReportOptions options;
        options.probes = 0;
        options.aerie = TestCorpus::aerie();
        options.aerie.audio.min_audio_len_secs = min_s;
        options.aerie.data.max_shapes = 5;
        const DatasetReport report = *report_dataset(*open(config), config, options);
        ASSERT_FALSE(report.padding.empty());
        EXPECT_NEAR(report.padding[0].padding_share, loader_padding(config, options.aerie), 1e-3);
        // Edges below what short clips are filled up to would part nothing.
        for (const double edge : report.duration_bins) EXPECT_GT(edge, min_s);
      }
}

TEST(ValidateTest, ListsWhatIsBrokenInOrder) {
  TestCorpus corpus(30);
  corpus.add_noise(3);
  write_file(corpus.dir.file("utt4.wav"), "junk");
  write_file(corpus.dir.file("utt9.wav"), wav_bytes(noise_samples(100, 1)));
  write_file(corpus.dir.file("utt12.wav"),
             wav_bytes(std::vector<int16_t>(corpus.samples[12].size())));
  write_file(corpus.dir.file("utt20.wav"), wav_bytes({}));
  write_file(corpus.dir.file("utt25.wav"), wav_bytes(corpus.samples[25]).substr(0, 1000));
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
    ASSERT_EQ(report.broken.size(), 5u);
    EXPECT_EQ(report.broken[0].kind, "unreadable");
    EXPECT_NE(report.broken[0].place.find("utt4.wav"), std::string::npos);
    EXPECT_EQ(report.broken[1].kind, "short");
    EXPECT_NE(report.broken[1].place.find("utt9.wav"), std::string::npos);
    EXPECT_NE(report.broken[2].place.find("utt20.wav"), std::string::npos);
    EXPECT_EQ(report.broken[2].kind, "empty");
    EXPECT_NE(report.broken[3].place.find("utt25.wav"), std::string::npos);
    EXPECT_EQ(report.broken[3].kind, "cut");
    EXPECT_NE(report.broken[4].place.find("noise1.wav"), std::string::npos);
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_NE(report.warnings[0].place.find("utt12.wav"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(report.to_json())["broken"].size(), 5u);
  }
  ValidateOptions quick;
  quick.quick = true;
  EXPECT_EQ((*validate_dataset(*dataset, quick)).broken.size(), 5u);
  ValidateOptions stopped;
  stopped.stop = [] { return true; };
  EXPECT_EQ(validate_dataset(*dataset, stopped).status().code(), StatusCode::kCancelled);
}

// A recording of hours behind a line of a second is readable, and most likely not what was meant.
TEST(ValidateTest, LongRecordingsOfShortLinesAreNamed) {
  TestCorpus corpus(6);
  write_file(corpus.dir.file("utt3.wav"), wav_bytes(noise_samples(100 * 16000, 1)));
  for (const bool quick : {false, true}) {
    ValidateOptions options;
    options.quick = quick;
    const ValidateReport report = *validate_dataset(*open(corpus.config(4)), options);
    EXPECT_TRUE(report.broken.empty());
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_EQ(report.warnings[0].kind, "long");
    EXPECT_NE(report.warnings[0].place.find("utt3.wav"), std::string::npos);
    EXPECT_NE(report.warnings[0].reason.find("of a recording of 100.000 s"), std::string::npos)
        << report.warnings[0].reason;
  }
  // Pieces of a long recording are what segmented corpora are made of.
  std::ofstream(corpus.manifest, std::ios::app) << TestCorpus::line("utt3.wav", 0.5, 7.5);
  EXPECT_TRUE((*validate_dataset(*open(corpus.config(4)), {})).warnings.empty());
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
}  // namespace aerie::data::dataset_report_test
