// What is said, and when: a sequence of phonemes on a grid of 2.5 ms frames.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/data/speech/synth/voice.h"

namespace aerie::data::synth {

constexpr int kSampleRate = 16000;
constexpr int kFrameSamples = 40;  // 2.5 ms
constexpr double kFrameSeconds = static_cast<double>(kFrameSamples) / kSampleRate;

struct PlannedPhoneme {
  int phoneme = 0;
  int begin_frame = 0;
  int end_frame = 0;
  bool accented = false;  // in the stressed syllable of its word
};

struct UtterancePlan {
  std::string text;                      // words, one blank between
  std::vector<PlannedPhoneme> phonemes;  // without gaps from frame 0 to num_frames
  int num_frames = 0;
};

// An utterance of exactly `num_frames` frames: words are added until it is full, then all durations
// are stretched a little to fit. A pure function of its arguments. num_frames >= 160 (0.4 s).
UtterancePlan plan_utterance(uint64_t seed, uint64_t index, const Voice& voice, int num_frames);

}  // namespace aerie::data::synth
