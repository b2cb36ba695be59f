// Batch augmentation: mixing other speakers and noise into a batch.
//
// Two steps. plan_mix() makes every random decision and writes it down as plain numbers: which
// source, from where, to where, how long, at which level. resolve_gains() turns levels into factors
// (it needs the energies, hence the samples). apply_mix() then adds the segments on the CPU; a GPU
// may do the same from the plan and the same rows, with equal samples to 1e-6.
//
// The decisions of an item depend only on (seed, epoch, its position in the epoch) and on the
// lengths in its batch, never on threads. Lengths and offsets are samples, levels are dB.
//
// Rules: NeMo's SpeakerNoiseAugmentation and MultiSpeakerNoiseAugmentation. By default an item that
// is left alone stays clean and keeps its length; with compat_nemo it keeps its raw noise and the
// noise's length, as NeMo 2.6 does. What makes NeMo fail (an empty segment, a mix as long as the
// utterance, an empty noise) is defined here in both modes: no segment, start 0, no noise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/base/status.h"

namespace aerie::data {

enum class AugmentKind : uint8_t {
  kNone,  // no augmentor: noisy = audio + noise at its raw level
  kSpeakerNoise,
  kMultiSpeakerNoise,
};

struct AugmentConfig {
  AugmentKind kind = AugmentKind::kNone;
  bool compat_nemo = false;
  double prob = 0.0;
  double noise_ratio = 0.0;
  double min_r_speech = -5.0;
  double max_r_speech = 5.0;
  double min_r_noise = -5.0;
  double max_r_noise = 20.0;
  double min_mix_rate = 0.0;
  double max_mix_rate = 1.0;
  int min_num_segments = 1;
  int max_num_segments = 5;
  int min_num_speakers = 1;
  int max_num_speakers = 4;

  Status validate() const;
};

enum class MixSource : uint8_t { kNoise, kSpeech };

// dest[dest_begin + k] = gain * source[(source_begin + k) mod source_period] for k in [0, length).
struct MixSegment {
  MixSource source = MixSource::kNoise;
  // Row of the source in the clean audio (kSpeech) or in the noise (kNoise; plan_mix numbers it as
  // the item's own, batches then hold only the rows of noise that are needed).
  int32_t row = 0;
  int64_t dest_begin = 0;
  int64_t length = 0;
  int64_t source_begin = 0;
  int64_t source_period = 0;  // valid samples of the source; shorter sources repeat
};

enum class GainRule : uint8_t {
  kUnit,       // raw level
  kUtterance,  // ratio_db between the utterance and the mixed-in signal, both averaged over it
  kSource,     // ratio_db between the utterance and the first energy_len samples of the source
};

struct MixItem {
  int32_t first_segment = 0;
  int32_t num_segments = 0;
  GainRule rule = GainRule::kUnit;
  double ratio_db = 0.0;
  int64_t energy_len = 0;  // kSource only
  float gain = 1.0f;       // filled by resolve_gains
  int64_t noise_len = 0;
  int64_t noisy_len = 0;
};

// Reused from batch to batch: its vectors keep their memory.
struct MixPlan {
  std::vector<MixItem> items;
  std::vector<MixSegment> segments;  // those of one item are adjacent and ordered by dest_begin
};

struct MixInput {
  int64_t audio_len = 0;
  int64_t noise_len = 0;  // samples of noise that are there; 0: none
  uint64_t position = 0;  // of the item in the epoch: selects its random stream
};

// The decisions, by name, so that a test can dictate them.
enum class MixDraw : uint8_t {
  kSkip,         // [0, 1): mixed when not above prob
  kMode,         // [0, 1): noise when below noise_ratio
  kMixRate,      // share of the utterance
  kMixLength,    // samples (SpeakerNoise)
  kNumSegments,  //
  kNumSpeakers,  //
  kRatio,        // dB
  kNextSpeaker,  // after every speaker had a turn
  kSourceStart,  //
  kPlacement,
};

class MixDraws {
 public:
  virtual ~MixDraws() = default;
  virtual void begin_item(size_t item, uint64_t position) = 0;
  virtual double uniform(MixDraw what, double low, double high) = 0;
  virtual int64_t randint(MixDraw what, int64_t low, int64_t high) = 0;  // both ends included
  // `total` balls thrown into `bins` bins: the non-empty counts in the order of the first hit.
  virtual void partition(int64_t total, int bins, std::vector<int64_t>& counts) = 0;
  // k distinct numbers below n, in random order.
  virtual void choose(int n, int k, std::vector<int32_t>& chosen) = 0;
};

class PhiloxMixDraws final : public MixDraws {
 public:
  PhiloxMixDraws(uint64_t seed, uint32_t epoch)
      : seed_(seed), epoch_(epoch), stream_(seed, Purpose::kAugment, epoch, 0) {}
  void begin_item(size_t item, uint64_t position) override;
  double uniform(MixDraw what, double low, double high) override;
  int64_t randint(MixDraw what, int64_t low, int64_t high) override;
  void partition(int64_t total, int bins, std::vector<int64_t>& counts) override;
  void choose(int n, int k, std::vector<int32_t>& chosen) override;

 private:
  uint64_t seed_;
  uint32_t epoch_;
  RandomStream stream_;
  std::vector<int32_t> pool_;
};

// What an item will need, known before its batch is complete.
struct MixNeeds {
  bool mixed = false;         // its energy will be asked for
  int64_t noise_samples = 0;  // of its noise, from the start; 0: none
};
MixNeeds mix_needs(const AugmentConfig& config, MixDraws& draws, size_t batch_size,
                   const MixInput& input);

// Plans a batch. Every audio_len is at least 1.
void plan_mix(const AugmentConfig& config, std::span<const MixInput> inputs, MixDraws& draws,
              MixPlan& plan);

// One row of samples: floats, or 16-bit integers that stand for value / 32768. Both null: absent.
struct MixRow {
  const float* f32 = nullptr;
  const int16_t* i16 = nullptr;
  bool empty() const { return f32 == nullptr && i16 == nullptr; }
};

// Rows of the batch: audio[i] and noise[i] hold at least audio_len and noise_len samples; noise[i]
// may be absent where no segment reads it. audio_energy[i], if given and not negative, is the sum
// of squares of audio[i].
struct MixRows {
  std::span<const MixInput> inputs;
  std::span<const MixRow> audio;
  std::span<const MixRow> noise;
  std::span<const double> audio_energy;  // empty: computed
};
void resolve_gains(const MixRows& rows, MixPlan& plan);

// Adds the segments of item i onto `noisy`, which already holds the clean row.
void add_segments(const MixRows& rows, const MixPlan& plan, size_t item, float* noisy);
// Writes the noise that add_segments would add: zeros and scaled segments, `length` samples.
void write_noise(const MixRows& rows, const MixPlan& plan, size_t item, float* out, int64_t length);

// Sum of squares in double; the energy of a row times its length.
double sum_of_squares(const float* samples, int64_t length);
double sum_of_squares(const int16_t* samples, int64_t length);  // exact

// trunc(f32(a) * f32(rate)): NeMo multiplies in single precision.
int64_t scaled_length(int64_t length, double rate);

// An exact draw from Binomial(n, p).
int64_t binomial(RandomStream& random, int64_t n, double p);

}  // namespace aerie::data
