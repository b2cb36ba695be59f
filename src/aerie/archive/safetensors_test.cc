#include "aerie/archive/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie::archive::safetensors_test {
namespace {

OutTensor tensor(std::string name, Dtype dtype, std::vector<int64_t> shape, const void* data) {
  OutTensor out;
  out.name = std::move(name);
  out.dtype = dtype;
  out.shape = std::move(shape);
  out.data = data;
  return out;
}

std::string file(std::string_view header, std::string_view data = {}) {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + std::string(header) +
         std::string(data);
}

std::string refusal(std::string bytes) {
  return read_safetensors(memory_source(std::move(bytes), "x")).status().to_string();
}

TEST(SafetensorsTest, WritesAlignedDataAndReadsItBack) {
  const float floats[] = {1, 2, 3};
  const double doubles[] = {0.5, 0.25};
  const uint8_t bytes[] = {7};
  const int64_t count = 42;
  std::string out;
  const Sink sink = [&](std::string_view piece) {
    out += piece;
    return ok_status();
  };
  const std::vector<OutTensor> tensors{
      tensor("b", Dtype::kU8, {1}, bytes), tensor("f", Dtype::kF32, {3, 1}, floats),
      tensor("d", Dtype::kF64, {2}, doubles), tensor("n", Dtype::kI64, {}, &count),
      tensor("e", Dtype::kF16, {0, 4}, nullptr)};
  ASSERT_TRUE(write_safetensors(sink, tensors, {{"format", "pt"}, {"say \"hi\"", "a\nb"}}).ok());
  uint64_t header_size = 0;
  std::memcpy(&header_size, out.data(), 8);
  EXPECT_EQ(header_size % 8, 0u);

  auto archive = read_safetensors(memory_source(out, "x"));
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  ASSERT_EQ(archive->tensors().size(), 5u);
  EXPECT_EQ(archive->tensors()[0].name, "b");
  for (const TensorInfo& info : archive->tensors())
    EXPECT_EQ(info.offset % dtype_size(info.dtype), 0u) << info.name;
  EXPECT_EQ(archive->read_as<float>(*archive->find("f")).value(), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(archive->read_as<double>(*archive->find("d")).value(),
            (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(archive->read_as<int64_t>(*archive->find("n")).value(), (std::vector<int64_t>{42}));
  EXPECT_EQ(archive->find("n")->shape, (std::vector<int64_t>{}));
  EXPECT_EQ(archive->find("e")->shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(archive->text_metadata().at("say \"hi\""), "a\nb");
}

TEST(SafetensorsTest, ReadsEscapesAndAnyFieldOrder) {
  const auto archive = read_safetensors(memory_source(
      file("{ \"\\u00e9\\ud83d\\ude00\\t\" : {\"data_offsets\":[0,1], \"shape\" : [ 1 ] ,"
           "\"dtype\":\"U8\"}}   ",
           "\x05"),
      "x"));
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  EXPECT_NE(archive->find("\xc3\xa9\xf0\x9f\x98\x80\t"), nullptr);
  EXPECT_TRUE(read_safetensors(memory_source(file("{}"), "x")).ok());
}

TEST(SafetensorsTest, RefusesWhatTheFormatForbids) {
  const auto one = [](std::string_view fields) { return str_cat("{\"a\":{", fields, "}}"); };
  const std::string good = "\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]";
  const std::string data(8, '\0');
  ASSERT_EQ(refusal(file(one(good), data)), "ok");
  struct Case {
    std::string bytes;
    const char* says;
  };
  const Case cases[] = {
      {"", "too short"},
      {std::string(8, '\xff'), "header would take"},
      {file("{}").substr(0, 9), "cut short"},
      {file(" {}"), "does not begin with '{'"},
      {file("{"), "is missing"},
      {file("{\"a"), "does not end"},
      {file("{}x"), "something follows"},
      {file(one(good), data.substr(1)), "take 8 bytes, the file holds 7"},
      {file(one(good), data + "x"), "take 8 bytes, the file holds 9"},
      {file(one("\"dtype\":\"F32\",\"shape\":[2]"), data), "lacks its"},
      {file(one(good + ",\"more\":1"), data), "unknown or repeated field 'more'"},
      {file(one(good + ",\"shape\":[2]"), data), "unknown or repeated field 'shape'"},
      {file(one("\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]"), data), "unknown type"},
      {file(one("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), data), "takes 12 bytes"},
      {file(one("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), data), "non-negative"},
      {file(one("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), data), "whole"},
      {file(one("\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]"), data), "leading zero"},
      {file(one("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,8]"),
            data),
       "impossibly large"},
      {file(one("\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,8]"), data),
       "does not fit"},
      {file(one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), data),
       "data_offsets are"},
      {file("{\"a\":{" + good + "},\"b\":{" + good + "}}", data), "overlap"},
      {file("{\"a\":{" + good + "},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[9,10]}}",
            data + "xy"),
       "leave a hole"},
      {file("{\"a\":{" + good + "},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[8,9]}}",
            data + "x"),
       "appears twice"},
      {file("{\"__metadata__\":{\"a\":1}}"), "is missing"},
      {file("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}"), "twice"},
      {file("{\"__metadata__\":{},\"__metadata__\":{}}"), "twice"},
      {file("{\"\xff\":{" + good + "}}", data), "not UTF-8"},
      {file("{\"\\ud800\":{" + good + "}}", data), "surrogate"},
      {file("{\"a\nb\":{" + good + "}}", data), "control character"},
  };
  for (const Case& c : cases) {
    const std::string message = refusal(c.bytes);
    EXPECT_NE(message.find(c.says), std::string::npos) << message << "\n  wanted: " << c.says;
    EXPECT_EQ(message.substr(0, 3), "x: ") << message;
  }
}

TEST(SafetensorsTest, FilesAppearWholeOrNotAtAll) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->write_file("/w.safetensors", "old").ok());
  OutTensor broken = tensor("a", Dtype::kF32, {2}, nullptr);
  broken.fill = [](void*, uint64_t) { return io_error("the disk is gone"); };
  const Status status = write_safetensors(*env, "/w.safetensors", {broken});
  EXPECT_EQ(status.to_string(), "writing '/w.safetensors': tensor 'a': the disk is gone");
  EXPECT_EQ(env->read_file("/w.safetensors").value(), "old");
  EXPECT_EQ(env->list_dir("/").value().size(), 1u);

  const float floats[] = {1, 2};
  ASSERT_TRUE(
      write_safetensors(*env, "/w.safetensors", {tensor("a", Dtype::kF32, {2}, floats)}).ok());
  EXPECT_TRUE(read_safetensors(*env, "/w.safetensors").ok());
  EXPECT_EQ(env->list_dir("/").value().size(), 1u);
}

TEST(SafetensorsTest, RefusesToWriteNonsense) {
  const auto drop = [](std::string_view) { return ok_status(); };
  const float one = 1;
  const OutTensor a = tensor("a", Dtype::kF32, {}, &one);
  EXPECT_FALSE(write_safetensors(drop, {a, a}).ok());
  EXPECT_FALSE(write_safetensors(drop, {tensor("\xff", Dtype::kF32, {}, &one)}).ok());
  EXPECT_FALSE(write_safetensors(drop, {tensor("", Dtype::kF32, {}, &one)}).ok());
  EXPECT_FALSE(write_safetensors(drop, {tensor("a", Dtype::kF32, {-1}, &one)}).ok());
  EXPECT_FALSE(write_safetensors(drop, {tensor("a", Dtype::kC128, {1}, &one)}).ok());
}

}  // namespace
}  // namespace aerie::archive::safetensors_test
