#include "aerie/archive/tensor_archive.h"

#include <cstring>

#include <gtest/gtest.h>

namespace aerie::archive::tensor_archive_test {
namespace {

SourcePtr counting(int count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i);
  return memory_source(std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4),
                       "counting");
}

TensorInfo info(std::vector<int64_t> shape, std::vector<int64_t> strides = {},
                uint64_t offset = 0) {
  TensorInfo out;
  out.name = std::string("x");
  out.shape = std::move(shape);
  out.strides = std::move(strides);
  out.offset = offset;
  return out;
}

std::vector<float> read(const TensorInfo& tensor, int count = 24) {
  auto archive = TensorArchive::make("test", {counting(count)}, {tensor});
  EXPECT_TRUE(archive.ok()) << archive.status().to_string();
  auto values = archive->read_as<float>(archive->tensors()[0]);
  EXPECT_TRUE(values.ok()) << values.status().to_string();
  return *values;
}

std::string refusal(const TensorInfo& tensor, int count = 24) {
  return TensorArchive::make("test", {counting(count)}, {tensor}).status().to_string();
}

TEST(TensorArchiveTest, ReadsStridedViewsRowMajor) {
  EXPECT_EQ(read(info({2, 3}, {}, 8)), (std::vector<float>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(read(info({2, 3}, {1, 2})), (std::vector<float>{0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(read(info({2, 2, 2}, {12, 1, 6}, 4)), (std::vector<float>{1, 7, 2, 8, 13, 19, 14, 20}));
  EXPECT_EQ(read(info({3}, {0}, 12)), (std::vector<float>{3, 3, 3}));
  EXPECT_EQ(read(info({}, {}, 92)), (std::vector<float>{23}));
  EXPECT_EQ(read(info({0, 5}, {5, 1}, 96)), (std::vector<float>{}));
  EXPECT_EQ(read(info({4, 1}, {5, 99})), (std::vector<float>{0, 5, 10, 15}));
}

TEST(TensorArchiveTest, KnowsWhichViewsAreContiguous) {
  EXPECT_TRUE(info({2, 3}, {3, 1}).contiguous());
  EXPECT_TRUE(info({2, 1, 3}, {3, 77, 1}).contiguous());
  EXPECT_TRUE(info({0, 3}, {9, 9}).contiguous());
  EXPECT_FALSE(info({3, 2}, {1, 3}).contiguous());
  EXPECT_FALSE(info({2, 3}, {4, 1}).contiguous());
}

TEST(TensorArchiveTest, RefusesWhatLiesOutsideItsStorage) {
  EXPECT_NE(refusal(info({25})).find("reaches past its storage of 96 bytes"), std::string::npos);
  EXPECT_NE(refusal(info({1}, {}, 97)).find("begins at byte 97"), std::string::npos);
  EXPECT_NE(refusal(info({2}, {24})).find("reaches past"), std::string::npos);
  EXPECT_NE(refusal(info({2}, {-1}, 40)).find("negative stride"), std::string::npos);
  EXPECT_NE(refusal(info({-1})).find("negative dimension"), std::string::npos);
  EXPECT_NE(refusal(info({3, 3}, {1})).find("2 dimensions but 1 strides"), std::string::npos);
  const int64_t huge = int64_t{1} << 62;
  EXPECT_NE(refusal(info({huge, huge})).find("impossibly large"), std::string::npos);
  EXPECT_NE(refusal(info({0, huge, huge})).find("impossibly large"), std::string::npos);
  EXPECT_NE(refusal(info({2, 2}, {huge, huge})).find("reaches past"), std::string::npos);
  EXPECT_NE(refusal(info({3, 3, 3}, {INT64_MAX, INT64_MAX, INT64_MAX})).find("reaches past"),
            std::string::npos);
}

TEST(TensorArchiveTest, RefusesViewsThatUnfoldToFarMoreThanTheFile) {
  EXPECT_NE(refusal(info({int64_t{1} << 40}, {0})).find("would take more than"), std::string::npos);
  // Many small lies add up.
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(info({1 << 15}, {0}));
    tensors.back().name = std::to_string(i);
  }
  const auto archive = TensorArchive::make("test", {counting(24)}, tensors);
  EXPECT_NE(archive.status().to_string().find("'8'"), std::string::npos);
}

TEST(TensorArchiveTest, NamesAreUnique) {
  const auto archive = TensorArchive::make("test", {counting(24)}, {info({1}), info({2})});
  EXPECT_EQ(archive.status().to_string(), "test: tensor 'x': appears twice");
}

TEST(TensorArchiveTest, ChecksTheTypeAskedFor) {
  auto archive = TensorArchive::make("test", {counting(24)}, {info({2})});
  ASSERT_TRUE(archive.ok());
  EXPECT_EQ(archive->read_as<double>(*archive->find("x")).status().to_string(),
            "test: tensor 'x': holds float32, float64 was expected");
  EXPECT_EQ(archive->find("y"), nullptr);
}

}  // namespace
}  // namespace aerie::archive::tensor_archive_test
