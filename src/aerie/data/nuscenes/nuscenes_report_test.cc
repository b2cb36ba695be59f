// Figures, checks and the sheet of a data set.
#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "aerie/data/nuscenes/contact_sheet.h"
#include "aerie/data/nuscenes/data_report.h"
#include "aerie/data/nuscenes/prediction_sheet.h"
#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/data/nuscenes/sheet_parts.h"
#include "aerie/data/nuscenes/test_root.h"

namespace aerie::nuscenes {
namespace {

std::shared_ptr<const NuscenesDataset> open_all(const TestRoot& root) {
  DataConfig config = root.config(DataRole::kValidation);
  config.split = "all";
  NuscenesDataset::Options options;
  options.quiet = true;
  options.keep_missing = true;
  auto dataset = NuscenesDataset::open(config, options);
  EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
  return *dataset;
}

TEST(NuscenesReportTest, CountsWhatIsThere) {
  const TestRoot root;
  ASSERT_TRUE(Env::real().remove_file(root.path(TestRoot::picture_name(2, 1))).ok());
  const DataReport report = *report_data(*open_all(root), {.probes = 50, .num_threads = 2});
  EXPECT_EQ(report.scenes, 3u);
  EXPECT_EQ(report.samples, 12u);
  EXPECT_EQ(report.files.num_files, 72u);
  EXPECT_EQ(report.files.num_missing, 1u);
  EXPECT_EQ(report.split_samples, 12u);
  EXPECT_EQ(report.split.num_without_files, 1u);
  EXPECT_EQ(report.locations.at("singapore-onenorth").map, "1.3");
  ASSERT_EQ(report.classes.size(), 6u);
  EXPECT_EQ(report.drawn, 12u);
  EXPECT_GT(report.classes[0].cells, 0.05);
  EXPECT_GT(report.classes[0].cells, report.classes[1].cells);
  EXPECT_EQ(report.probed, 71u);
  EXPECT_EQ(report.picture_sizes.at("160x90"), 72u);
  std::set<std::string> names;
  for (const DataReport::Split& split : report.splits) names.insert(split.name);
  EXPECT_TRUE(names.contains("mini_train") && names.contains("mini_val"));
  const auto json = nlohmann::json::parse(report.to_json());
  EXPECT_EQ(json["files"]["missing"], 1);
  EXPECT_NE(report.to_text().find("drivable_area"), std::string::npos);
}

TEST(NuscenesReportTest, ListsWhatIsBroken) {
  const TestRoot root;
  EXPECT_TRUE(check_data(*open_all(root), {.num_threads = 2})->broken.empty());
  const std::string good = TestRoot::jpeg_bytes(TestRoot::picture(160, 90, 7));
  root.write(TestRoot::picture_name(1, 0), good.substr(0, good.size() - good.size() / 8));
  root.write(TestRoot::picture_name(3, 5), "GIF89a");
  root.write(TestRoot::picture_name(4, 2), TestRoot::jpeg_bytes(TestRoot::picture(80, 45, 7)));
  ASSERT_TRUE(Env::real().remove_file(root.path(TestRoot::picture_name(2, 1))).ok());
  for (const int threads : {1, 3}) {
    const DataCheckReport report = *check_data(*open_all(root), {.num_threads = threads});
    EXPECT_EQ(report.samples, 12u);
    EXPECT_EQ(report.pictures, 71u);
    ASSERT_EQ(report.broken.size(), 3u);
    EXPECT_EQ(report.broken[0].kind, "unreadable");
    EXPECT_NE(report.broken[0].place.find(TestRoot::picture_name(1, 0)), std::string::npos);
    EXPECT_EQ(report.broken[1].kind, "missing");
    EXPECT_EQ(report.broken[2].kind, "unreadable");
    ASSERT_EQ(report.warnings.size(), 1u);
    EXPECT_NE(report.warnings[0].reason.find("80 x 45"), std::string::npos);
    EXPECT_EQ(nlohmann::json::parse(report.to_json())["broken"].size(), 3u);
  }
}

TEST(NuscenesReportTest, TheSheetShowsCamerasMapAndTruth) {
  const TestRoot root;
  for (const GtTaskChoice task : {GtTaskChoice::kMap, GtTaskChoice::kVehicle}) {
    DataConfig config = root.config();
    config.image.size = {45, 80};
    config.image.resize_lim = {0.5, 0.5};
    config.gt.task = task;
    const auto dataset = TestRoot::open(config);
    const auto sheet = contact_sheet(*dataset, 2, 0, 1);
    ASSERT_TRUE(sheet.ok()) << sheet.status().to_string();
    EXPECT_GT(sheet->width(), 3 * 80 + 90);
    EXPECT_GT(sheet->height(), 2 * 45);
    std::set<int> shades;
    for (int y = 0; y < sheet->height(); ++y)
      for (int x = 0; x < sheet->width(); ++x) shades.insert(sheet->row(y)[3 * x]);
    EXPECT_GT(shades.size(), 50u);
    // Every class stands in the legend below, however narrow the sheet.
    for (const std::string& name : mask_names(dataset->rules())) {
      const image::Color colour = class_colour(name);
      int pixels_of_class = 0;
      for (int y = 2 * 45 + 2; y < sheet->height(); ++y)
        for (int x = 0; x < sheet->width(); ++x)
          pixels_of_class += sheet->row(y)[3 * x] == colour.r &&
                             sheet->row(y)[3 * x + 1] == colour.g &&
                             sheet->row(y)[3 * x + 2] == colour.b;
      EXPECT_GE(pixels_of_class, 14 * 14) << name;
    }
    // Another epoch draws another sheet, the same one the same.
    const auto pixels = [&](uint32_t epoch) {
      const image::Image one = *contact_sheet(*dataset, 2, epoch, 1);
      return std::vector<uint8_t>(one.row(0), one.row(0) + one.bytes());
    };
    EXPECT_EQ(pixels(0), pixels(0));
    EXPECT_NE(pixels(0), pixels(1));
  }
}

TEST(NuscenesReportTest, ThePredictionSheetShowsWhatWasWrong) {
  const TestRoot root;
  for (const GtTaskChoice task : {GtTaskChoice::kMap, GtTaskChoice::kVehicle}) {
    DataConfig config = root.config();
    config.image.size = {45, 80};
    config.gt.task = task;
    config.image.augment = config.bev.augment = false;
    const auto dataset = TestRoot::open(config);
    const auto reader = SampleReader::make(*dataset);
    ASSERT_TRUE(reader.ok());
    PredictedSample sample;
    sample.entry = 2;
    sample.img.resize(size_t{6} * 45 * 80 * 3);
    sample.bev_aug.resize(16);
    sample.gt.resize((*reader)->gt().num_bytes());
    std::vector<float> matrices(size_t{3} * 6 * 16);
    SampleFigures figures;
    ASSERT_TRUE((*reader)
                    ->read(2, 0, 1,
                           {sample.img.data(), matrices.data(), matrices.data() + 96,
                            matrices.data() + 192, sample.bev_aug.data(), sample.gt.data()},
                           figures)
                    .ok());
    std::fill(sample.gt.begin(), sample.gt.begin() + 200, uint8_t{1});
    const auto draw = [&](float where_true, float elsewhere, std::vector<float> thresholds = {}) {
      sample.probability.clear();
      for (const uint8_t truth : sample.gt)
        sample.probability.push_back(truth != 0 ? where_true : elsewhere);
      const auto sheet = prediction_sheet(*dataset, sample, {"step 7", std::move(thresholds), 1});
      EXPECT_TRUE(sheet.ok()) << sheet.status().to_string();
      std::map<std::vector<uint8_t>, int> colours;  // of the error panel
      for (int y = sheet->height() / 3; y < sheet->height() * 3 / 4; ++y)
        for (int x = sheet->width() * 2 / 3 + 8; x < sheet->width() - 8; ++x)
          ++colours[std::vector<uint8_t>(sheet->row(y) + 3 * x, sheet->row(y) + 3 * x + 3)];
      return colours;
    };
    const std::vector<uint8_t> right{190, 205, 190}, missed{33, 102, 172}, too_much{230, 97, 1};
    auto all = draw(0.9f, 0.1f);
    EXPECT_GT(all[right], 0);
    EXPECT_EQ(all[missed] + all[too_much], 0);
    all = draw(0.1f, 0.1f);
    EXPECT_GT(all[missed], 0);
    EXPECT_EQ(all[right] + all[too_much], 0);
    all = draw(0.9f, 0.9f);
    EXPECT_GT(all[too_much], 1000);
    EXPECT_EQ(all[missed], 0);
    // A threshold of its own for every class.
    all = draw(0.4f, 0.3f, std::vector<float>(6, 0.35f));
    EXPECT_GT(all[right], 0);
    EXPECT_EQ(all[missed] + all[too_much], 0);
  }
}

TEST(NuscenesReportTest, ShuffledCamerasExchangePicturesAlone) {
  const TestRoot root;
  DataConfig config = root.config();
  config.image.size = {45, 80};
  const size_t bytes = size_t{3} * 45 * 80;
  struct Read {
    std::vector<uint8_t> img, gt;
    std::vector<float> matrices;
  };
  const auto read = [&](bool shuffle, uint32_t epoch) {
    config.shuffle_cameras = shuffle;
    const auto dataset = TestRoot::open(config);
    const auto reader = SampleReader::make(*dataset);
    Read out{std::vector<uint8_t>(6 * bytes), std::vector<uint8_t>((*reader)->gt().num_bytes()),
             std::vector<float>(size_t{3} * 96 + 16)};
    SampleFigures figures;
    float* const m = out.matrices.data();
    EXPECT_TRUE((*reader)
                    ->read(2, epoch, 1,
                           {out.img.data(), m, m + 96, m + 192, m + 288, out.gt.data()}, figures)
                    .ok());
    return out;
  };
  std::set<std::vector<size_t>> orders;
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    const Read plain = read(false, epoch), mixed = read(true, epoch);
    EXPECT_EQ(plain.matrices, mixed.matrices);
    EXPECT_EQ(plain.gt, mixed.gt);
    std::vector<size_t> order;
    for (size_t n = 0; n < 6; ++n)
      for (size_t k = 0; k < 6; ++k)
        if (std::equal(mixed.img.begin() + n * bytes, mixed.img.begin() + (n + 1) * bytes,
                       plain.img.begin() + k * bytes))
          order.push_back(k);
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 6u);
    orders.insert(order);
    EXPECT_EQ(read(true, epoch).img, mixed.img);
  }
  EXPECT_GT(orders.size(), 2u);  // another order every time
}

}  // namespace
}  // namespace aerie::nuscenes
