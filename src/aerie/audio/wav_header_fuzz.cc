// libFuzzer target: arbitrary bytes as a recording, through every decoder the reader may choose.
// The first bytes of the input choose segment, selector and mode.
#include <cstdint>

#include "aerie/audio/audio_reader.h"

// libsndfile leaks libvorbis state when an Ogg header is malformed; not ours to fix.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:vorbis_\nleak:ogg_\n";
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::audio;
  if (size < 4) return 0;
  ReadOptions options;
  options.limits.allowed_codecs = *parse_codec_set({"all"});
  options.limits.max_samples = 1 << 20;
  options.sample_rate = (data[0] & 1) != 0 ? 16000 : 0;
  options.prefer_int16 = (data[0] & 2) != 0;
  options.int_values = (data[0] & 4) != 0;
  options.trim_silence = (data[0] & 8) != 0;
  if ((data[0] & 16) != 0) options.channels = ChannelSelector::average();
  if ((data[0] & 32) != 0) options.channels = ChannelSelector::list({1, 0});
  Segment segment;
  segment.offset_s = data[1] / 1000.0;
  segment.duration_s = data[2] / 100.0;
  const std::span<const uint8_t> bytes(data + 3, size - 3);
  AudioReader reader(options);
  // Twice: a failed read must leave a usable reader.
  for (int round = 0; round < 2; ++round) {
    const auto view = reader.read_memory(bytes, "fuzz", segment);
    if (!view.ok()) continue;
    double sum = 0.0;
    for (int64_t i = 0; i < view->size(); ++i)
      sum += view->samples != nullptr ? view->samples[i] : view->pcm16[i];
    if (sum == 0.125) return 1;  // keeps the reads
  }
  (void)probe_memory(bytes, "fuzz", options.limits);
  return 0;
}
