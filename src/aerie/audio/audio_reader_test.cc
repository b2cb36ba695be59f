// Results against NeMo's AudioSegment (tests/data/audio, made by make_fixtures.py), then what has
// no counterpart there: int16 output, memory input, buffers, limits, damaged files.
#include "aerie/audio/audio_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sndfile.h>
#include <xxhash.h>

#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"

namespace aerie::audio {
namespace {

const std::string kDir = test_data("/audio/");

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}

std::vector<float> read_floats(const std::string& path) {
  const std::vector<uint8_t> bytes = read_bytes(path);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

std::vector<float> to_vector(const AudioView& view) {
  std::vector<float> out(static_cast<size_t>(view.size()));
  view.copy_to(out.data());
  return out;
}

std::string xxh64(const std::vector<float>& values) {
  char text[17];
  std::snprintf(
      text, sizeof(text), "%016llx",
      static_cast<unsigned long long>(XXH64(values.data(), values.size() * sizeof(float), 0)));
  return text;
}

Result<ChannelSelector> selector_of(const nlohmann::json& value) {
  if (value.is_null()) return ChannelSelector::all();
  if (value.is_number()) return ChannelSelector::index(value.get<int>());
  if (value.is_array()) return ChannelSelector::list(value.get<std::vector<int>>());
  return ChannelSelector::parse(value.get<std::string>());
}

Result<AudioView> read_case(const nlohmann::json& c, AudioReader& reader) {
  Segment segment;
  segment.offset_s = c.contains("offset") ? c["offset"].get<double>() : 0.0;
  segment.duration_s = c.contains("duration") ? c["duration"].get<double>() : 0.0;
  if (c["file"].is_array()) {
    std::vector<std::string> paths;
    for (const auto& file : c["file"]) paths.push_back(kDir + file.get<std::string>());
    return reader.read_file_list(paths, segment);
  }
  return reader.read_file(kDir + c["file"].get<std::string>(), segment);
}

void check_case(const nlohmann::json& c, const Result<AudioView>& view) {
  if (c.contains("error")) {
    EXPECT_FALSE(view.ok());
    return;
  }
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->frames, c["frames"].get<int64_t>());
  EXPECT_EQ(view->channels, c["channels"].get<int>());
  EXPECT_EQ(view->sample_rate, c["rate"].get<int>());
  const std::vector<float> got = to_vector(*view);
  if (c.contains("xxh64")) {
    EXPECT_EQ(xxh64(got), c["xxh64"].get<std::string>());
  }
  if (c.contains("expect")) {
    const std::vector<float> want = read_floats(kDir + c["expect"].get<std::string>());
    ASSERT_EQ(got.size(), want.size());
    double worst = 0.0;
    for (size_t i = 0; i < want.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
    EXPECT_LE(worst, c["tol"].get<double>());
  }
}

std::vector<nlohmann::json> load_cases() {
  std::ifstream in(kDir + "cases.jsonl");
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(in, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

ReadOptions options_of(const nlohmann::json& c, Status* status) {
  ReadOptions options;
  options.sample_rate = c.value("target_sr", 0);
  options.int_values = c.value("int_values", false);
  options.trim_silence = c.value("trim", false);
  Result<ChannelSelector> selector = selector_of(c["channel_selector"]);
  if (selector.ok())
    options.channels = *selector;
  else
    *status = selector.status();
  return options;
}

TEST(AudioReaderTest, EqualsAudioSegmentFromFiles) {
  const std::vector<nlohmann::json> cases = load_cases();
  ASSERT_GT(cases.size(), 200u);
  for (const nlohmann::json& c : cases) {
    SCOPED_TRACE(c.dump());
    Status status;
    AudioReader reader(options_of(c, &status));
    if (!status.ok()) {
      EXPECT_TRUE(c.contains("error"));
      continue;
    }
    check_case(c, read_case(c, reader));
  }
}

TEST(AudioReaderTest, EqualsAudioSegmentFromMemoryAndWithReusedBuffers) {
  for (const nlohmann::json& c : load_cases()) {
    if (c["file"].is_array()) continue;
    SCOPED_TRACE(c.dump());
    Status status;
    AudioReader reader(options_of(c, &status));
    if (!status.ok()) continue;
    // Other recordings before and after leave no trace.
    (void)reader.read_file(kDir + "f24.flac");
    const std::vector<uint8_t> bytes = read_bytes(kDir + c["file"].get<std::string>());
    Segment segment;
    segment.offset_s = c.value("offset", 0.0);
    segment.duration_s = c.value("duration", 0.0);
    for (int round = 0; round < 2; ++round) {
      check_case(c, reader.read_memory(bytes, "member.wav", segment));
      (void)reader.read_file(kDir + "m44.mp3");
      (void)reader.read_file(kDir + "sr22050.wav");
    }
  }
}

TEST(AudioReaderTest, DeliversExactInt16WhereNothingIsLost) {
  for (const char* file : {"pcm16.wav", "f16.flac", "a.aiff", "wavex16.wav", "f16_st.flac"}) {
    SCOPED_TRACE(file);
    ReadOptions options;
    options.prefer_int16 = true;
    AudioReader ints(options);
    options.prefer_int16 = false;
    AudioReader floats(options);
    for (const double offset : {0.0, 0.0313}) {
      const Result<AudioView> a = ints.read_file(kDir + file, {offset, 0.02});
      const Result<AudioView> b = floats.read_file(kDir + file, {offset, 0.02});
      ASSERT_TRUE(a.ok() && b.ok());
      ASSERT_NE(a->pcm16, nullptr);
      EXPECT_EQ(a->samples, nullptr);
      EXPECT_EQ(b->pcm16, nullptr);
      EXPECT_EQ(to_vector(*a), to_vector(*b));
    }
  }
}

TEST(AudioReaderTest, Int16SelectsChannelsLikeFloat) {
  const ChannelSelector selectors[] = {ChannelSelector::index(1), ChannelSelector::list({1, 0}),
                                       ChannelSelector::list({-1}),
                                       ChannelSelector::list({0, 1, 1})};
  ReadOptions options;
  options.prefer_int16 = true;
  AudioReader ints(options);
  options.prefer_int16 = false;
  AudioReader floats(options);
  for (const ChannelSelector& selector : selectors) {
    SCOPED_TRACE(selector.to_string());
    Segment segment;
    segment.channels = &selector;
    const Result<AudioView> a = ints.read_file(kDir + "pcm16_st.wav", segment);
    const Result<AudioView> b = floats.read_file(kDir + "pcm16_st.wav", segment);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->channels, b->channels);
    EXPECT_EQ(to_vector(*a), to_vector(*b));
  }
}

TEST(AudioReaderTest, SelectsChannelsOfAnEmptyCut) {
  // Found by fuzzing: a list selector on a file whose data is shorter than one frame.
  std::vector<uint8_t> bytes = read_bytes(kDir + "ten.wav");
  bytes.resize(44 + 15);
  ReadOptions options;
  options.channels = ChannelSelector::list({1, 0});
  AudioReader reader(options);
  const Result<AudioView> view = reader.read_memory(bytes, "short.wav");
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->frames, 0);
  EXPECT_EQ(view->channels, 2);
}

TEST(AudioReaderTest, FallsBackToFloatWhereInt16WouldLose) {
  ReadOptions options;
  options.prefer_int16 = true;
  AudioReader reader(options);
  for (const char* file : {"pcm24.wav", "float.wav", "sr8000.wav", "v.ogg", "f8.flac"}) {
    const Result<AudioView> view = reader.read_file(kDir + file);
    ASSERT_TRUE(view.ok()) << file;
    EXPECT_NE(view->samples, nullptr) << file;
    EXPECT_EQ(view->pcm16, nullptr) << file;
  }
}

TEST(AudioReaderTest, MemoryHonoursTheSelectorUnlessToldNotTo) {
  const std::vector<uint8_t> bytes = read_bytes(kDir + "pcm16_st.wav");
  ReadOptions options;
  options.channels = ChannelSelector::average();
  AudioReader fixed(options);
  EXPECT_EQ(fixed.read_memory(bytes, "m")->channels, 1);
  options.memory_ignores_channels = true;
  AudioReader compat(options);
  EXPECT_EQ(compat.read_memory(bytes, "m")->channels, 2);
  EXPECT_EQ(compat.read_file(kDir + "pcm16_st.wav")->channels, 1);
}

TEST(AudioReaderTest, OffsetBehindTheEndIsNamed) {
  AudioReader reader({});
  for (const char* file : {"pcm16.wav", "f16.flac", "v.ogg"}) {
    const Result<AudioView> view = reader.read_file(kDir + file, {0.9, 0.1});
    ASSERT_FALSE(view.ok()) << file;
    EXPECT_EQ(view.status().code(), StatusCode::kDataError);
    EXPECT_NE(view.status().to_string().find("behind the end"), std::string::npos);
    EXPECT_NE(view.status().to_string().find(file), std::string::npos);
  }
}

TEST(AudioReaderTest, MissingAndSpecialFilesAreErrors) {
  AudioReader reader({});
  EXPECT_EQ(reader.read_file(kDir + "nothing.wav").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(reader.read_file(kDir).ok());
  EXPECT_FALSE(reader.read_file("/dev/zero").ok());
  EXPECT_FALSE(reader.read_memory({}, "empty").ok());
}

TEST(AudioReaderTest, FlacSeeksEqualAFullDecode) {
  AudioReader reader({});
  const Result<AudioView> whole_view = reader.read_file(kDir + "trim.flac");
  ASSERT_TRUE(whole_view.ok());
  const std::vector<float> whole = to_vector(*whole_view);
  for (int64_t first = 0; first < static_cast<int64_t>(whole.size()); first += 611) {
    Segment segment{(static_cast<double>(first) + 0.5) / 16000.0, 777.5 / 16000.0};
    const Result<AudioView> part = reader.read_file(kDir + "trim.flac", segment);
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    const int64_t want = std::min<int64_t>(777, static_cast<int64_t>(whole.size()) - first);
    ASSERT_EQ(part->frames, want);
    EXPECT_EQ(std::memcmp(part->samples, whole.data() + first, static_cast<size_t>(want) * 4), 0);
  }
}

TEST(AudioReaderTest, FlacWithoutALengthAndBehindATag) {
  std::vector<uint8_t> bytes = read_bytes(kDir + "trim.flac");
  AudioReader reader({});
  const std::vector<float> whole = to_vector(*reader.read_memory(bytes, "whole"));
  bytes[21] &= 0xF0;  // total samples = 0: unknown
  std::fill(bytes.begin() + 22, bytes.begin() + 26, 0);
  EXPECT_EQ(probe_memory(bytes, "streamed")->frames, -1);
  EXPECT_EQ(to_vector(*reader.read_memory(bytes, "streamed")), whole);
  const Result<AudioView> part = reader.read_memory(bytes, "streamed", {0.5, 0.25});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  ASSERT_EQ(part->frames, 4000);
  EXPECT_EQ(std::memcmp(part->samples, whole.data() + 8000, 4000 * sizeof(float)), 0);
  // An ID3 tag of 20 bytes before the stream.
  std::vector<uint8_t> tagged = {'I', 'D', '3', 4, 0, 0, 0, 0, 0, 20};
  tagged.resize(30, 0);
  const std::vector<uint8_t> plain = read_bytes(kDir + "trim.flac");
  tagged.insert(tagged.end(), plain.begin(), plain.end());
  const Result<AudioView> behind = reader.read_memory(tagged, "tagged", {0.5, 0.25});
  ASSERT_TRUE(behind.ok()) << behind.status().to_string();
  EXPECT_EQ(std::memcmp(behind->samples, whole.data() + 8000, 4000 * sizeof(float)), 0);
}

TEST(AudioReaderTest, DamagedFlacIsAnErrorAndTheReaderRecovers) {
  std::vector<uint8_t> bytes = read_bytes(kDir + "trim.flac");
  AudioReader reader({});
  std::vector<uint8_t> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(bytes.size() / 2));
  EXPECT_EQ(reader.read_memory(cut, "cut").status().code(), StatusCode::kDataError);
  bytes[bytes.size() / 2] ^= 0x55;
  EXPECT_EQ(reader.read_memory(bytes, "flipped").status().code(), StatusCode::kDataError);
  EXPECT_TRUE(reader.read_file(kDir + "trim.flac").ok());
}

ReadOptions strict() {
  ReadOptions options;
  options.strict = true;
  return options;
}

TEST(AudioReaderTest, TruncatedWavGivesWhatIsThereUnlessStrict) {
  std::vector<uint8_t> bytes = read_bytes(kDir + "pcm16.wav");
  bytes.resize(44 + 2 * 100 + 1);
  AudioReader reader({});
  const Result<AudioView> view = reader.read_memory(bytes, "cut.wav");
  ASSERT_TRUE(view.ok());
  EXPECT_EQ(view->frames, 100);
  EXPECT_FALSE(AudioReader(strict()).read_memory(bytes, "cut.wav").ok());
}

// 16-bit samples at 16 kHz in a container that libsndfile writes.
std::vector<uint8_t> in_container(int format, int frames) {
  const TempDir dir;
  const std::string path = dir.file("a");
  SF_INFO info{};
  info.samplerate = 16000;
  info.channels = 1;
  info.format = format;
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  EXPECT_NE(file, nullptr) << format << sf_strerror(nullptr);
  std::vector<short> samples(static_cast<size_t>(frames));
  for (size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<short>(i * 7919 % 20011) - 10000;
  EXPECT_EQ(sf_writef_short(file, samples.data(), frames), frames);
  sf_close(file);
  return read_bytes(path);
}

TEST(AudioReaderTest, CutRecordingsAreErrorsWhereTheCutIsNeeded) {
  const int containers[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16,    SF_FORMAT_WAV | SF_FORMAT_PCM_24,
                            SF_FORMAT_WAV | SF_FORMAT_FLOAT,     SF_FORMAT_WAV | SF_FORMAT_ULAW,
                            SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, SF_FORMAT_WAVEX | SF_FORMAT_PCM_16,
                            SF_FORMAT_RF64 | SF_FORMAT_PCM_16,   SF_FORMAT_W64 | SF_FORMAT_PCM_16,
                            SF_FORMAT_AIFF | SF_FORMAT_PCM_16,   SF_FORMAT_AU | SF_FORMAT_PCM_16,
                            SF_FORMAT_NIST | SF_FORMAT_PCM_16,   SF_FORMAT_CAF | SF_FORMAT_PCM_16,
                            SF_FORMAT_FLAC | SF_FORMAT_PCM_16};
  AudioReader reader(strict());
  for (const int format : containers) {
    SCOPED_TRACE(testing::Message() << std::hex << format);
    const std::vector<uint8_t> whole = in_container(format, 64000);
    const Result<AudioView> all = reader.read_memory(whole, "whole");
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    EXPECT_NEAR(static_cast<double>(all->frames), 64000, 1020);  // ADPCM fills its last block
    EXPECT_EQ(all->source.missing_frames, 0);
    std::vector<uint8_t> half(whole.begin(),
                              whole.begin() + static_cast<int64_t>(whole.size() / 2));
    const Status cut = reader.read_memory(half, "half.wav").status();
    EXPECT_EQ(cut.code(), StatusCode::kDataError) << cut.to_string();
    EXPECT_EQ(reader.read_memory(half, "half.wav", {1.0, 2.5}).status().code(),
              StatusCode::kDataError);
    if ((format & SF_FORMAT_TYPEMASK) == SF_FORMAT_CAF) continue;  // libsndfile reads none of it
    // What lies before the cut can be used.
    const Result<AudioView> part = reader.read_memory(half, "half.wav", {0.25, 0.5});
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_EQ(part->frames, 8000);
    if ((format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC) continue;
    EXPECT_TRUE(starts_with(cut.message(), kCutShort)) << cut.to_string();
    EXPECT_NE(cut.to_string().find("half.wav"), std::string::npos);
    if ((format & SF_FORMAT_SUBMASK) == SF_FORMAT_IMA_ADPCM) continue;  // in blocks of 30 ms
    // Less than a hundredth of a second is nobody's loss.
    std::vector<uint8_t> scratched(whole.begin(), whole.end() - 100);
    EXPECT_TRUE(reader.read_memory(scratched, "scratched").ok());
  }
}

TEST(AudioReaderTest, HeadersOfPipesPromiseNothing) {
  for (const uint32_t size : {0xFFFFFFFFu, 0x7FFFFFFFu, 0x80000000u, 0x7FFFFFDBu}) {
    std::vector<uint8_t> bytes = in_container(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000);
    std::memcpy(bytes.data() + 40, &size, sizeof(size));
    AudioReader reader(strict());
    const Result<AudioView> view = reader.read_memory(bytes, "piped.wav");
    ASSERT_TRUE(view.ok()) << view.status().to_string();
    EXPECT_EQ(view->frames, 16000);
  }
}

TEST(AudioReaderTest, RecordingsWithoutAudioAreErrors) {
  AudioReader reader(strict());
  std::vector<uint8_t> empty = in_container(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 0);
  const auto refused = [&](const std::vector<uint8_t>& bytes, const Segment& segment) {
    const Status status = reader.read_memory(bytes, "empty.wav", segment).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError);
    EXPECT_NE(status.to_string().find("empty.wav"), std::string::npos);
  };
  refused(empty, {});
  refused(empty, {0.0, 3.0});
  // Chunks behind it are no samples.
  std::vector<uint8_t> listed = empty;
  const std::string list("LIST\x1A\0\0\0INFOISFT\x0E\0\0\0some recorder\0", 34);
  listed.insert(listed.end(), list.begin(), list.end());
  refused(listed, {});
  refused(in_container(SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 0), {});
  refused(in_container(SF_FORMAT_CAF | SF_FORMAT_PCM_16, 0), {});
  refused(in_container(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 0), {});
  // All but the header is gone.
  std::vector<uint8_t> header = in_container(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000);
  header.resize(44);
  refused(header, {});
  refused(header, {0.0, 0.5});
  // A cut that begins where the recording ends.
  refused(in_container(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000), {1.0, 0.5});
}

TEST(AudioReaderTest, RecordingsOfUnknownLengthStayWithinTheRoom) {
  AudioReader reader({});
  const std::vector<uint8_t> flac = in_container(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 64000);
  std::vector<uint8_t> unknown = flac;
  unknown[21] &= 0xF0;  // total samples = 0: unknown
  std::fill(unknown.begin() + 22, unknown.begin() + 26, 0);
  const std::vector<uint8_t> streamed = unknown;
  const std::vector<uint8_t> wav = in_container(SF_FORMAT_WAV | SF_FORMAT_PCM_16, 64000);
  const std::vector<uint8_t> ogg = in_container(SF_FORMAT_OGG | SF_FORMAT_VORBIS, 64000);
  for (const auto* bytes : {&flac, &streamed, &wav, &ogg}) {
    Segment segment;
    segment.room_samples = 64000;
    EXPECT_TRUE(reader.read_memory(*bytes, "a", segment).ok());
    segment.room_samples = 63999;
    const Status status = reader.read_memory(*bytes, "a", segment).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError);
    EXPECT_NE(status.to_string().find("room for 3.99"), std::string::npos) << status.to_string();
    // A duration says what is needed.
    segment.duration_s = 1.0;
    EXPECT_EQ(reader.read_memory(*bytes, "a", segment)->frames, 16000);
  }
  // Room is counted at the rate of the result.
  ReadOptions options;
  options.sample_rate = 8000;
  AudioReader slower(options);
  Segment segment;
  segment.room_samples = 32000;
  EXPECT_TRUE(slower.read_memory(wav, "a", segment).ok());
  segment.room_samples = 31999;
  EXPECT_FALSE(slower.read_memory(wav, "a", segment).ok());
}

TEST(AudioReaderTest, StreamsGiveWhatMemoryGives) {
  AudioReader reader({});
  for (const char* file : {"pcm16.wav", "trim.flac", "v.ogg", "pcm24.wav"}) {
    SCOPED_TRACE(file);
    const std::vector<uint8_t> bytes = read_bytes(kDir + file);
    const std::vector<float> want = to_vector(*reader.read_memory(bytes, file));
    auto opened = Env::real().open_random_access(kDir + file);
    const Result<AudioView> view = reader.read_stream(std::move(opened).value(), file);
    ASSERT_TRUE(view.ok()) << view.status().to_string();
    EXPECT_EQ(to_vector(*view), want);
    const auto info =
        probe_stream(std::move(Env::real().open_random_access(kDir + file)).value(), file);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->codec, probe_memory(bytes, file)->codec);
  }
}

TEST(AudioReaderTest, ReadsCaf) {
  AudioReader reader({});
  const Result<AudioView> view =
      reader.read_memory(in_container(SF_FORMAT_CAF | SF_FORMAT_PCM_16, 16000), "a.caf");
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->source.codec, Codec::kCaf);
  EXPECT_EQ(view->frames, 16000);
}

TEST(AudioReaderTest, NotANumberIsRefused) {
  std::vector<uint8_t> bytes = read_bytes(kDir + "float.wav");
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - 4, &bad, 4);
  AudioReader reader({});
  const Result<AudioView> view = reader.read_memory(bytes, "nan.wav");
  ASSERT_FALSE(view.ok());
  EXPECT_NE(view.status().to_string().find("nan.wav"), std::string::npos);
}

TEST(AudioReaderTest, AllowListGoesByContent) {
  ReadOptions options;
  options.limits.allowed_codecs = *parse_codec_set({"flac"});
  AudioReader reader(options);
  TempDir dir;
  write_bytes(dir.file("fake.flac"), read_bytes(kDir + "pcm16.wav"));
  EXPECT_EQ(reader.read_file(dir.file("fake.flac")).status().code(), StatusCode::kUnsupported);
  write_bytes(dir.file("fake.wav"), read_bytes(kDir + "f16.flac"));
  EXPECT_TRUE(reader.read_file(dir.file("fake.wav")).ok());
  EXPECT_FALSE(parse_codec_set({"wma"}).ok());
}

TEST(AudioReaderTest, LimitsHoldForReads) {
  ReadOptions options;
  options.limits.max_samples = 1000;
  AudioReader reader(options);
  for (const char* file : {"pcm16.wav", "f16.flac", "v.ogg"}) {
    EXPECT_FALSE(reader.read_file(kDir + file).ok()) << file;
    EXPECT_TRUE(reader.read_file(kDir + file, {0.0, 0.05}).ok()) << file;
  }
}

TEST(AudioReaderTest, HeadersThatClaimTooMuchAreRefused) {
  std::vector<uint8_t> flac = read_bytes(kDir + "f16.flac");
  // total samples = 2^36 - 1 in STREAMINFO (36 bits behind byte 4 + 4 + 13)
  flac[21] |= 0x0F;
  std::fill(flac.begin() + 22, flac.begin() + 26, 0xFF);
  EXPECT_FALSE(probe_memory(flac, "flac").ok());
  std::vector<uint8_t> wav = read_bytes(kDir + "pcm16.wav");
  wav[22] = 0xFF;  // 65535 channels with a block size to match nothing
  wav[23] = 0xFF;
  EXPECT_FALSE(probe_memory(wav, "wav").ok());
}

// Not in words about the library's structures, nor about files where there are none.
TEST(AudioReaderTest, ErrorsSpeakOfTheRecording) {
  std::vector<uint8_t> rate = read_bytes(kDir + "pcm16.wav");
  std::memset(rate.data() + 24, 0, 4);
  std::vector<uint8_t> headers(80000);
  for (size_t i = 0; i < headers.size(); ++i)
    headers[i] = std::array<uint8_t, 4>{0xFF, 0xFB, 0x90, 0x00}[i % 4];
  std::vector<uint8_t> sizes = read_bytes(kDir + "rf64.wav");  // without the chunk of its sizes
  const std::string_view name = "ds64";
  const auto ds64 = std::search(sizes.begin(), sizes.end(), name.begin(), name.end());
  ASSERT_NE(ds64, sizes.end());
  std::copy_n("JUNK", 4, ds64);
  AudioReader reader(ReadOptions{});
  for (const auto& bytes : {rate, headers, sizes}) {
    const auto view = reader.read_memory(bytes, "clip");
    ASSERT_FALSE(view.ok());
    const std::string text = view.status().to_string();
    EXPECT_EQ(text.find("SF_INFO"), std::string::npos) << text;
    EXPECT_EQ(text.find("internal"), std::string::npos) << text;
    EXPECT_EQ(text.find("regular file"), std::string::npos) << text;
    EXPECT_NE(text.find("no readable audio: "), std::string::npos) << text;
  }
}

TEST(AudioReaderTest, OddChunksBeforeDataAreSkipped) {
  const std::vector<uint8_t> plain = read_bytes(kDir + "pcm16.wav");
  std::vector<uint8_t> bytes(plain.begin(), plain.begin() + 12);
  const std::vector<uint8_t> junk = {'L', 'I', 'S', 'T', 5, 0, 0, 0, 1, 2, 3, 4, 5, 0};
  bytes.insert(bytes.end(), junk.begin(), junk.end());
  bytes.insert(bytes.end(), plain.begin() + 12, plain.end());
  AudioReader reader({});
  const std::vector<float> want = to_vector(*reader.read_memory(plain, "plain"));
  EXPECT_EQ(to_vector(*reader.read_memory(bytes, "odd")), want);
  // Sizes a pipe leaves behind.
  std::vector<uint8_t> piped = plain;
  std::fill(piped.begin() + 4, piped.begin() + 8, 0xFF);
  std::fill(piped.begin() + 40, piped.begin() + 44, 0xFF);
  EXPECT_EQ(to_vector(*reader.read_memory(piped, "piped")), want);
}

TEST(AudioInfoTest, ProbesEveryCodec) {
  const auto codec = [](const char* file) {
    const Result<AudioInfo> info = probe_file(kDir + file);
    EXPECT_TRUE(info.ok()) << file << info.status().to_string();
    return info.ok() ? std::string(codec_name(info->codec)) : "";
  };
  EXPECT_EQ(codec("pcm24.wav"), "wav");
  EXPECT_EQ(codec("double.wav"), "wav-float");
  EXPECT_EQ(codec("ulaw.wav"), "wav-other");
  EXPECT_EQ(codec("rifx.wav"), "wav");
  EXPECT_EQ(codec("f8.flac"), "flac");
  EXPECT_EQ(codec("v.ogg"), "vorbis");
  EXPECT_EQ(codec("o.ogg"), "opus");
  EXPECT_EQ(codec("m.mp3"), "mp3");
  EXPECT_EQ(codec("a.aiff"), "aiff");
  EXPECT_EQ(codec("a.au"), "au");
  EXPECT_EQ(codec("a.nist"), "sphere");
  EXPECT_EQ(codec("rf64.wav"), "rf64");
  const Result<AudioInfo> info = probe_file(kDir + "f16_st.flac");
  EXPECT_EQ(info->frames, 1600);
  EXPECT_EQ(info->channels, 2);
  EXPECT_EQ(info->sample_rate, 16000);
  EXPECT_EQ(info->bits_per_sample, 16);
  EXPECT_DOUBLE_EQ(info->duration_s(), 0.1);
  EXPECT_FALSE(probe_file(kDir + "make_fixtures.py").ok());
}

TEST(PadTest, TilesAndZeroes) {
  EXPECT_EQ(min_length_samples(1.0, 16000), 16000);
  EXPECT_EQ(min_length_samples(0.29, 100), 28);  // 28.999999999999996, as Python truncates
  std::vector<float> x(10, -1.0f);
  for (int i = 0; i < 3; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i);
  EXPECT_EQ(pad_to_min_length(x.data(), 3, 10, PadMode::kRepeat), 10);
  EXPECT_EQ(x, (std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(pad_to_min_length(x.data(), 4, 10, PadMode::kZero), 10);
  EXPECT_EQ(x, (std::vector<float>{0, 1, 2, 0, 0, 0, 0, 0, 0, 0}));
  x.assign(10, 7.0f);
  EXPECT_EQ(pad_to_min_length(x.data(), 0, 5, PadMode::kRepeat), 5);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 0, 0, 7, 7, 7, 7, 7}));
  EXPECT_EQ(pad_to_min_length(x.data(), 8, 5, PadMode::kRepeat), 8);
  EXPECT_FALSE(parse_pad_mode("wrap").ok());
}

TEST(ChannelSelectorTest, ParsesEveryForm) {
  EXPECT_EQ(*ChannelSelector::parse("null"), ChannelSelector::all());
  EXPECT_EQ(*ChannelSelector::parse("2"), ChannelSelector::index(2));
  EXPECT_EQ(*ChannelSelector::parse("[0, 3]"), ChannelSelector::list({0, 3}));
  EXPECT_EQ(*ChannelSelector::parse("average"), ChannelSelector::average());
  EXPECT_FALSE(ChannelSelector::parse("left").ok());
  EXPECT_FALSE(ChannelSelector::parse("[0,x]").ok());
  EXPECT_FALSE(ChannelSelector::parse("[]").ok());
}

TEST(AudioReaderTest, OffsetsWorkWithCodecsThatCannotSeek) {
  ReadOptions options;
  options.prefer_int16 = false;
  AudioReader reader(options);
  const Result<AudioView> whole = reader.read_file(kDir + "gsm.wav");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  ASSERT_GE(whole->frames, 3200);
  const std::vector<float> all(whole->samples, whole->samples + whole->frames);
  const Result<AudioView> part = reader.read_file(kDir + "gsm.wav", {0.05, 0.1});
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  ASSERT_EQ(part->frames, 1600);
  for (int64_t i = 0; i < part->frames; ++i)
    ASSERT_EQ(part->samples[i], all[static_cast<size_t>(800 + i)]) << i;
}

}  // namespace
}  // namespace aerie::audio
