// Labelled utterances for probes: which lines of a manifest, their audio with noise mixed in, the
// phoneme at the centre of every encoder frame, the speaker. Free of torch.
//
// Everything drawn is a function of (seed, part, line): neither the number of threads nor of other
// utterances matters.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/philox.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest.h"

namespace aerie::probe {

// A phoneme and where it lies, in seconds from the start of the utterance.
struct Span {
  std::string label;
  double begin_s = 0.0;
  double end_s = 0.0;
};

struct Utterance {
  std::vector<float> samples;  // as the encoder hears it
  std::vector<Span> phonemes;  // in order; empty: the manifest has none
  std::string speaker;         // empty: the manifest has none
  // Values of the fields that were asked for; those a line lacks are not there.
  std::map<std::string, std::string> labels;
  std::string place;  // "test.json:17"
};

// Labels of a manifest line (JSON): "phonemes": [["a", 0.0, 0.12], ...], "speaker": "s003" (or a
// number), and `fields`, each text, a number or true/false. All may be absent; malformed ones are
// errors.
Status parse_labels(std::string_view line, Utterance& out,
                    const std::vector<std::string>& fields = {});

// The first `count` of a random order of the lines 0 .. size-1 (all when there are fewer),
// beginning behind the first `skip` of that order.
std::vector<uint64_t> choose_lines(uint64_t size, uint64_t skip, uint64_t count, uint64_t seed,
                                   uint32_t part);

// Clips of a noise manifest. Immutable; any thread may draw.
class NoiseSource {
 public:
  static Result<NoiseSource> open(Env& env, const std::string& manifest, int64_t sample_rate);
  // `samples` of a random clip from a random place, repeated when it is too short. Clips that
  // cannot be read or are silent are drawn again, 20 times at most.
  Result<std::vector<float>> draw(RandomStream& random, int64_t samples) const;

 private:
  NoiseSource(Env& env, data::Manifest manifest, int64_t sample_rate)
      : env_(&env), manifest_(std::move(manifest)), sample_rate_(sample_rate) {}
  Env* env_;
  data::Manifest manifest_;
  int64_t sample_rate_;
};

// Adds noise so that the power of the speech over the power of the noise is `snr_db`. Silent speech
// stays as it is.
void add_noise(std::vector<float>& speech, const std::vector<float>& noise, double snr_db);

struct PartOptions {
  uint32_t part = 0;  // number in the random streams
  uint64_t seed = 0;
  int64_t sample_rate = 16000;
  double min_snr_db = 0.0;
  double max_snr_db = 15.0;
  int workers = 0;                  // threads that read audio
  std::vector<std::string> fields;  // labels of utterances to read
};

struct Part {
  std::vector<Utterance> utterances;  // in the order of `lines`, less those skipped
  std::vector<Status> skipped;        // could not be read
};

// Reads the given lines of a manifest; `noise` null: clean. An error only when labels are malformed
// or nothing could be read.
Result<Part> read_part(Env& env, const data::Manifest& manifest, std::span<const uint64_t> lines,
                       const NoiseSource* noise, const PartOptions& options);

// Names to numbers, in alphabetical order.
class LabelSet {
 public:
  explicit LabelSet(const std::vector<std::string>& names);
  int64_t size() const { return static_cast<int64_t>(numbers_.size()); }
  // size() for a name that is not in the set: a class no probe ever predicts.
  int64_t number(const std::string& name) const;

 private:
  std::map<std::string, int64_t> numbers_;
};

// Frames whose centre lies inside an utterance: frame f is centred at (f + 1/2) * frame_samples.
int64_t num_centred_frames(int64_t samples, int64_t frame_samples);

// Class of each centred frame; -1 where no phoneme covers the centre.
std::vector<int64_t> frame_labels(const Utterance& utterance, const LabelSet& labels,
                                  int64_t frame_samples, int64_t sample_rate);

}  // namespace aerie::probe
