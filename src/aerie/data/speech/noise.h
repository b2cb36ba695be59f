// Noise for an utterance: a random entry of the noise manifests, a random stretch of it.
//
// Rules (NeMo's): up to 20 entries are tried; from an entry longer than the utterance up to 100
// stretches are drawn until one has energy (NeMo: until the plain sum of its samples is positive,
// which rejects half of all noise; kept with compat_nemo). Noise that is silent gets faint white
// noise. Short noise is not repeated here: its length says where it ends. After 20 failures there
// is none. All draws come from the stream (seed, kNoise, epoch, position).
//
// The pool is immutable and shared; a NoiseReader belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/philox.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest.h"

namespace aerie::data {

struct NoiseOptions {
  int sample_rate = 16000;
  bool compat_nemo = false;
  audio::AudioLimits limits;
};

// Random decisions by name, so that a test can dictate them.
class NoiseDraws {
 public:
  virtual ~NoiseDraws() = default;
  virtual uint64_t entry(uint64_t n) = 0;
  virtual double offset(double high) = 0;
  virtual int level_db(int low, int high) = 0;  // both included
  virtual float normal() = 0;
};

class PhiloxNoiseDraws final : public NoiseDraws {
 public:
  PhiloxNoiseDraws(uint64_t seed, uint32_t epoch, uint64_t position)
      : stream_(seed, Purpose::kNoise, epoch, position) {}
  uint64_t entry(uint64_t n) override { return stream_.below(n); }
  double offset(double high) override { return stream_.uniform(0.0, high); }
  int level_db(int low, int high) override { return static_cast<int>(stream_.randint(low, high)); }
  float normal() override { return stream_.normal(); }

 private:
  RandomStream stream_;
};

struct NoiseStats {
  std::atomic<uint64_t> read{0};      // utterances that got noise
  std::atomic<uint64_t> failed{0};    // attempts that failed
  std::atomic<uint64_t> given_up{0};  // utterances without noise after 20 attempts
  std::atomic<uint64_t> redrawn{0};   // stretches rejected
  std::atomic<uint64_t> bytes{0};
};

class NoiseReader {
 public:
  static constexpr int kMaxAttempts = 20;
  static constexpr int kMaxStretches = 100;
  static constexpr int kMinWhiteDb = -90;
  static constexpr int kMaxWhiteDb = -47;

  NoiseReader(std::shared_ptr<const Manifest> pool, const NoiseOptions& options, NoiseStats* stats);

  // Noise for an utterance of n samples: writes the first `wanted` of them (wanted <= n; what is
  // not mixed need not be read) to `out`, zeros where the noise ends. Returns the number of samples
  // of noise; 0 when there is no noise (NeMo reports n zeros then: the same mix). Integers are
  // rounded.
  int64_t read(int64_t n, int64_t wanted, NoiseDraws& draws, float* out);
  int64_t read(int64_t n, int64_t wanted, NoiseDraws& draws, int16_t* out);
  // Of the last read. Entries that cannot be read are passed over; an error is the machine's
  // (kUnavailable), and then there is no noise.
  const Status& error() const { return error_; }

 private:
  template <typename Sample>
  int64_t read_any(int64_t n, int64_t wanted, NoiseDraws& draws, Sample* out);
  template <typename Sample>
  Result<int64_t> read_entry(uint64_t entry, int64_t n, int64_t wanted, NoiseDraws& draws,
                             Sample* out);

  std::shared_ptr<const Manifest> pool_;
  NoiseOptions options_;
  NoiseStats* stats_;
  audio::AudioReader reader_;
  std::string path_;
  Status error_;
};

}  // namespace aerie::data
