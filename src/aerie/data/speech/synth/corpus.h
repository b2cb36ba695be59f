// Writes a whole corpus: audio, manifests, and corpus.json, which describes it.
//
//   OUT/train.json dev.json test.json      manifests (JSON lines, paths relative to OUT)
//   OUT/noise.json noise_test.json         noise clips for training and for testing
//   OUT/corpus.json                        options, phonemes, lexicon, voices, totals
//   OUT/audio/train/s003/s003-000123.wav   16 kHz mono, 16 bits
//
// Voices of the test part speak nowhere else. Every file is a pure function of the options that
// describe it: neither the number of workers nor the other options' order of work matters, and a
// corpus with more hours begins with the same utterances.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/synth/audio_encoder.h"

namespace aerie::data::synth {

struct CorpusOptions {
  std::string out;
  double hours = 1.0;     // speech of all three parts together
  int num_speakers = 30;  // a fifth of them, at least one, is kept for testing
  uint64_t seed = 1234;
  AudioFormat format = AudioFormat::kWav;
  double min_duration_s = 2.0;
  double max_duration_s = 8.0;
  double dev_share = 0.05;
  double test_share = 0.10;
  double noise_hours = -1.0;  // -1: a quarter of `hours`, but 0.2 to 5
  int num_workers = 0;        // 0: one per CPU
  bool force = false;         // replace a corpus in `out`

  Status validate() const;
};

struct CorpusPart {
  std::string name;  // also of its manifest, without ".json"
  uint64_t num_files = 0;
  double hours = 0.0;
  int num_speakers = 0;  // 0 for noise
};

struct CorpusReport {
  std::vector<CorpusPart> parts;
  uint64_t bytes = 0;
  double elapsed_s = 0.0;
  bool reused = false;  // the same corpus was there already
};

// Refuses a folder that holds anything but such a corpus, and one made with other options unless
// `force`. A corpus that an interrupted call left unfinished is completed. Shows progress on a
// terminal. Not to be called twice for one folder at a time.
Result<CorpusReport> write_corpus(const CorpusOptions& options, Env& env = Env::real());

}  // namespace aerie::data::synth
