#include "aerie/data/nuscenes/camera/camera_reader.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <sstream>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/hash.h"
#include "aerie/base/testing/paths.h"

// Counts what a warm reader allocates. Replaces the global operators of this test program; libjpeg
// uses malloc and is not counted.
namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* counted_alloc(size_t size) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace
void* operator new(size_t size) {
  return counted_alloc(size);
}
void* operator new[](size_t size) {
  return counted_alloc(size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace aerie::nuscenes {
namespace {

std::vector<uint8_t> file_bytes(const std::string& name) {
  const std::string text = Env::real().read_file(test_data("/bev/pictures/") + name).value();
  return {text.begin(), text.end()};
}

struct Case {
  std::string file, digest;
  int denominator = 1;
  ImageAugmentation augmentation;
};

std::vector<Case> recorded_cases() {
  std::ifstream in(test_data("/bev/pictures/cases.txt"));
  std::vector<Case> cases;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    Case one;
    ImageAugmentation& a = one.augmentation;
    fields >> one.file >> one.denominator >> a.resize >> a.new_width >> a.new_height >> a.crop_x >>
        a.crop_y >> a.final_width >> a.final_height >> a.flip >> a.rotate_deg >> one.digest;
    EXPECT_FALSE(fields.fail()) << line;
    cases.push_back(one);
  }
  return cases;
}

image::Image read(CameraReader& reader, std::span<const uint8_t> bytes, const ImageAugmentation& a,
                  DecodeMode mode) {
  image::Image out(a.final_width, a.final_height);
  out.fill(77);
  const Status status = reader.read(bytes, a, mode, out.mutable_view());
  EXPECT_TRUE(status.ok()) << status.to_string();
  return out;
}

std::string digest(const image::Image& picture) {
  return sha256_hex({reinterpret_cast<const char*>(picture.row(0)), picture.bytes()}).substr(0, 16);
}

TEST(CameraReaderTest, EqualsPillowBitByBit) {
  const auto cases = recorded_cases();
  ASSERT_GE(cases.size(), 40u);
  std::map<std::string, std::vector<uint8_t>> files;
  CameraReader best;
  CameraReader scalar({}, image::ResampleSimd::kScalar);
  int scaled = 0;
  for (const Case& one : cases) {
    if (files.count(one.file) == 0) files[one.file] = file_bytes(one.file);
    const auto& bytes = files[one.file];
    const DecodeMode mode = one.denominator > 1 ? DecodeMode::kScaled : DecodeMode::kExact;
    const auto info = best.probe(bytes);
    ASSERT_TRUE(info.ok());
    if (mode == DecodeMode::kScaled) {
      EXPECT_EQ(decode_denominator(one.augmentation, info->width, info->height), one.denominator);
      ++scaled;
    }
    for (CameraReader* reader : {&best, &scalar})
      EXPECT_EQ(digest(read(*reader, bytes, one.augmentation, mode)), one.digest)
          << one.file << ", resize " << one.augmentation.resize << ", turned by "
          << one.augmentation.rotate_deg;
  }
  EXPECT_GE(scaled, 3);
}

TEST(CameraReaderTest, DecodesSmallOnlyWhereTheRuleAllows) {
  const auto denominator = [](double resize) {
    ImageAugmentation a;
    a.resize = resize;
    a.new_width = static_cast<int>(1600 * resize);
    a.new_height = static_cast<int>(900 * resize);
    return decode_denominator(a, 1600, 900);
  };
  EXPECT_EQ(denominator(0.55), 1);
  EXPECT_EQ(denominator(0.5001), 1);
  EXPECT_EQ(denominator(0.5), 2);
  EXPECT_EQ(denominator(0.2501), 2);
  EXPECT_EQ(denominator(0.25), 4);
  EXPECT_EQ(denominator(0.2), 4);
  EXPECT_EQ(denominator(0.125), 8);
  EXPECT_EQ(denominator(0.01), 8);
  ImageAugmentation a;  // a file of half the expected size is not halved again
  a.resize = 0.5;
  a.new_width = 800;
  a.new_height = 450;
  EXPECT_EQ(decode_denominator(a, 800, 450), 1);
}

TEST(CameraReaderTest, ScaledIsNearExact) {
  const auto bytes = file_bytes("camera.jpg");
  CameraReader reader;
  const auto lss = ImageAugmentationOptions::lift_splat_shoot();
  for (int entry = 0; entry < 4; ++entry) {
    const auto a = draw_image_augmentation(lss, 1600, 900, 1, 0, entry, 0);
    const auto exact = read(reader, bytes, a, DecodeMode::kExact);
    const auto scaled = read(reader, bytes, a, DecodeMode::kScaled);
    double sum = 0;
    for (size_t i = 0; i < exact.bytes(); ++i)
      sum += std::abs(int{exact.row(0)[i]} - int{scaled.row(0)[i]});
    EXPECT_GT(sum, 0);
    EXPECT_LT(sum / static_cast<double>(exact.bytes()), 2.0);
    const auto by_auto = read(reader, bytes, a, DecodeMode::kAuto);
    EXPECT_EQ(digest(by_auto), digest(exact));
  }
}

TEST(CameraReaderTest, ModesHaveNamesAndEvaluationIsExact) {
  EXPECT_EQ(*parse_decode_mode("auto"), DecodeMode::kAuto);
  EXPECT_EQ(*parse_decode_mode("exact"), DecodeMode::kExact);
  EXPECT_EQ(*parse_decode_mode("scaled"), DecodeMode::kScaled);
  EXPECT_EQ(parse_decode_mode("gpu").status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(parse_decode_mode("Fast").status().code(), StatusCode::kInvalidArgument);
  for (const auto mode : {DecodeMode::kAuto, DecodeMode::kExact, DecodeMode::kScaled})
    EXPECT_EQ(decode_mode_for(mode, false), DecodeMode::kExact);
  EXPECT_EQ(decode_mode_for(DecodeMode::kScaled, true), DecodeMode::kScaled);
  EXPECT_EQ(decode_mode_for(DecodeMode::kAuto, true), DecodeMode::kExact);
}

// A crop beside the picture, over its corners, and around all of it.
TEST(CameraReaderTest, OutsideIsBlack) {
  const auto bytes = file_bytes("s444.jpg");
  CameraReader reader;
  ImageAugmentation a;
  a.resize = 0.2;
  a.new_width = 34;
  a.new_height = 19;
  a.final_width = 50;
  a.final_height = 40;
  a.crop_x = a.crop_y = -10;
  const auto around = read(reader, bytes, a, DecodeMode::kExact);
  int coloured = 0;
  for (int y = 0; y < 40; ++y)
    for (int x = 0; x < 50; ++x) {
      const uint8_t* p = around.row(y) + 3 * x;
      const bool black = p[0] == 0 && p[1] == 0 && p[2] == 0;
      if (x < 10 || x >= 44 || y < 10 || y >= 29) {
        EXPECT_TRUE(black) << x << " " << y;
      } else {
        coloured += !black;
      }
    }
  EXPECT_GT(coloured, 34 * 19 / 2);
  for (const int beside : {-60, 40}) {
    a.crop_x = beside;
    const auto nothing = read(reader, bytes, a, DecodeMode::kExact);
    for (size_t i = 0; i < nothing.bytes(); ++i) ASSERT_EQ(nothing.row(0)[i], 0);
  }
}

TEST(CameraReaderTest, BadPicturesAreErrorsAndTheNextIsRight) {
  const auto cases = recorded_cases();
  const auto good = file_bytes(cases[0].file);
  CameraReader reader;
  image::Image out(cases[0].augmentation.final_width, cases[0].augmentation.final_height);
  const auto status_of = [&](std::span<const uint8_t> bytes) {
    return reader.read(bytes, cases[0].augmentation, DecodeMode::kExact, out.mutable_view());
  };
  EXPECT_EQ(status_of({}).code(), StatusCode::kDataError);
  EXPECT_EQ(status_of({good.data(), good.size() / 3}).code(), StatusCode::kDataError);
  auto damaged = good;
  for (size_t i = good.size() / 2; i < good.size() / 2 + 64; ++i) damaged[i] = 0xff;
  EXPECT_EQ(status_of(damaged).code(), StatusCode::kDataError);
  EXPECT_TRUE(status_of(good).ok());
  EXPECT_EQ(digest(out), cases[0].digest);
}

TEST(CameraReaderTest, AWarmReaderAllocatesNothing) {
  const auto bytes = file_bytes("camera.jpg");
  const ImageAugmentationOptions options;
  CameraReader reader;
  image::Image out(options.final_width, options.final_height);
  const auto round = [&](int first) {
    bool ok = true;
    for (int entry = first; entry < first + 6; ++entry)
      for (const DecodeMode mode : {DecodeMode::kExact, DecodeMode::kScaled})
        ok = ok && reader
                       .read(bytes, draw_image_augmentation(options, 1600, 900, 1, 0, entry, 0),
                             mode, out.mutable_view())
                       .ok();
    return ok;
  };
  // The smallest factor has the most taps and so the largest buffers.
  auto warm = draw_image_augmentation(options, 1600, 900, 1, 0, 0, 0);
  for (const double resize : {0.38, 0.5, 0.55}) {
    warm.resize = resize;
    warm.new_width = static_cast<int>(1600 * resize);
    warm.new_height = static_cast<int>(900 * resize);
    for (const DecodeMode mode : {DecodeMode::kExact, DecodeMode::kScaled})
      ASSERT_TRUE(reader.read(bytes, warm, mode, out.mutable_view()).ok());
  }
  ASSERT_TRUE(round(0));
  allocations = 0;
  counting = true;
  const bool ok = round(6);
  counting = false;
  EXPECT_TRUE(ok);
  EXPECT_EQ(allocations, 0);
}

}  // namespace
}  // namespace aerie::nuscenes
