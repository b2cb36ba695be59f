#include "aerie/audio/audio_writer.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "aerie/base/testing/paths.h"

namespace aerie::audio::audio_writer_test {
namespace {

const std::string kDir = test_data("/audio/");

std::vector<float> to_vector(const AudioView& view) {
  std::vector<float> out(static_cast<size_t>(view.size()));
  view.copy_to(out.data());
  return out;
}

TEST(AudioWriterTest, LosslessFormatsGiveBackTheSamples) {
  for (const bool int16 : {false, true})
    for (const char* file : {"pcm8.wav", "pcm16.wav", "pcm24.wav", "float.wav", "f8.flac",
                             "f24.flac", "pcm16_st.wav", "f16_st.flac"})
      for (const FileFormat format : {FileFormat::kWav, FileFormat::kFlac}) {
        if (format == FileFormat::kFlac && std::string(file) == "float.wav") continue;
        SCOPED_TRACE(str_cat(file, " as ", file_extension_of(format)));
        ReadOptions options;
        options.prefer_int16 = int16;
        AudioReader reader(options);
        const Result<AudioView> view = reader.read_file(kDir + file);
        ASSERT_TRUE(view.ok());
        const std::vector<float> want = to_vector(*view);
        std::vector<uint8_t> bytes;
        const Status status = encode_audio(*view, lossless_options(view->source, format), &bytes);
        ASSERT_TRUE(status.ok()) << status.to_string();
        const Result<AudioView> back = reader.read_memory(bytes, "written");
        ASSERT_TRUE(back.ok()) << back.status().to_string();
        EXPECT_EQ(back->channels, view->channels);
        EXPECT_EQ(to_vector(*back), want);
      }
}

TEST(AudioWriterTest, LossyFormatsKeepTheSignal) {
  AudioReader reader({});
  for (const FileFormat format : {FileFormat::kVorbis, FileFormat::kOpus, FileFormat::kMp3}) {
    SCOPED_TRACE(file_extension_of(format));
    const Result<AudioView> view = reader.read_file(kDir + "m.mp3");
    ASSERT_TRUE(view.ok());
    double power = 0.0;
    for (int64_t i = 0; i < view->frames; ++i) power += view->samples[i] * view->samples[i];
    std::vector<uint8_t> bytes;
    EncodeOptions options;
    options.format = format;
    ASSERT_TRUE(encode_audio(*view, options, &bytes).ok());
    const int64_t frames = view->frames;
    const Result<AudioView> back = reader.read_memory(bytes, "written");
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    double back_power = 0.0;
    for (int64_t i = 0; i < back->frames; ++i) back_power += back->samples[i] * back->samples[i];
    EXPECT_NEAR(static_cast<double>(back->frames), static_cast<double>(frames), 3000.0);
    EXPECT_NEAR(back_power / power, 1.0, 0.3);
  }
}

TEST(AudioWriterTest, ClipsInsteadOfWrapping) {
  const std::vector<float> loud = {2.0f, -2.0f, 0.0f, 1.0f};
  AudioView view;
  view.samples = loud.data();
  view.frames = 4;
  view.sample_rate = 16000;
  std::vector<uint8_t> bytes;
  ASSERT_TRUE(encode_audio(view, {}, &bytes).ok());
  AudioReader reader({});
  const float top = 32767.0f / 32768.0f;
  EXPECT_EQ(to_vector(*reader.read_memory(bytes, "w")), (std::vector<float>{top, -1.0f, 0, top}));
  int16_t ints[4];
  quantize_int16(loud.data(), 4, ints);
  EXPECT_EQ(ints[0], 32767);
  EXPECT_EQ(ints[1], -32768);
}

TEST(AudioWriterTest, RefusesWhatTheFormatCannotHold) {
  const float zero = 0.0f;
  AudioView view;
  view.samples = &zero;
  view.frames = 1;
  view.sample_rate = 44100;
  std::vector<uint8_t> bytes;
  EncodeOptions options;
  options.format = FileFormat::kOpus;
  EXPECT_FALSE(encode_audio(view, options, &bytes).ok());
  options.format = FileFormat::kFlac;
  options.bits = 32;
  EXPECT_FALSE(encode_audio(view, options, &bytes).ok());
  EXPECT_FALSE(parse_file_format("aac").ok());
}

}  // namespace
}  // namespace aerie::audio::audio_writer_test
