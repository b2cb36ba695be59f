#include "aerie/archive/npy.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"

namespace aerie::archive::npy_test {
namespace {

std::string npy(std::string_view header, std::string_view data) {
  std::string out("\x93NUMPY\x01\x00", 8);
  const auto size = static_cast<uint16_t>(header.size());
  out.append(reinterpret_cast<const char*>(&size), 2);
  return out + std::string(header) + std::string(data);
}

std::string refusal(std::string bytes) {
  return read_npy(memory_source(std::move(bytes), "x")).status().to_string();
}

TEST(NpyTest, WritesWhatItReads) {
  const double values[] = {1, 2, 3, 4, 5, 6};
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{2, 3}, {6}, {1, 6, 1}, std::vector<int64_t>{}}) {
    OutTensor tensor;
    tensor.name = "array";
    tensor.dtype = Dtype::kF64;
    tensor.shape = shape;
    tensor.data = values;
    std::string out;
    ASSERT_TRUE(write_npy(
                    [&](std::string_view piece) {
                      out += piece;
                      return ok_status();
                    },
                    tensor)
                    .ok());
    EXPECT_EQ((out.size() - tensor.nbytes()) % 64, 0u);
    auto archive = read_npy(memory_source(out, "x"));
    ASSERT_TRUE(archive.ok()) << archive.status().to_string();
    EXPECT_EQ(archive->tensors()[0].shape, shape);
    EXPECT_EQ(archive->read_as<double>(archive->tensors()[0])->size(), tensor.numel());
  }
}

TEST(NpyTest, ReadsFortranOrderAsStrides) {
  const auto archive = read_npy(memory_source(
      npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n", "\1\2\3\4\5\6"), "x"));
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  EXPECT_EQ(archive->read(archive->tensors()[0]).value(), "\1\3\5\2\4\6");
}

TEST(NpyTest, RefusesWhatItCannotUnderstand) {
  const std::string data(8, '\0');
  EXPECT_EQ(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", data)), "ok");
  EXPECT_NE(refusal("x").find("too short"), std::string::npos);
  EXPECT_NE(refusal("0123456789").find("does not begin"), std::string::npos);
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"})
    EXPECT_NE(refusal(npy(header, data)).find("cannot be understood"), std::string::npos) << header;
  EXPECT_NE(refusal(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", data))
                .find("'>f4' are not read"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", data))
                .find("'|O' are not read"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", data))
                .find("takes 12 bytes, there are 8"),
            std::string::npos);
  EXPECT_NE(refusal(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", data))
                .find("negative dimension"),
            std::string::npos);
}

TEST(NpyTest, ReadsCompressedArchivesOfNumpy) {
  auto archive = read_npz(Env::real(), test_data("/golden/plain/features_init.npz"));
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  ASSERT_EQ(archive->tensors().size(), 7u);
  const TensorInfo* mel = archive->find("mel0");
  ASSERT_NE(mel, nullptr);
  EXPECT_EQ(mel->dtype, Dtype::kF32);
  EXPECT_EQ(mel->shape, (std::vector<int64_t>{80, 160}));
  // Normalised features: zero mean per row over the valid frames.
  const std::vector<float> values = archive->read_as<float>(*mel).value();
  double sum = 0;
  for (int t = 0; t < 159; ++t) sum += static_cast<double>(values[static_cast<size_t>(t)]);
  EXPECT_NEAR(sum / 159, 0.0, 1e-5);
  EXPECT_EQ(archive->find("tok0")->dtype, Dtype::kI64);
}

}  // namespace
}  // namespace aerie::archive::npy_test
