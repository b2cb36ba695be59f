// Random streams of the synthesiser: the epoch field of the Philox counter says what is drawn, the
// position which voice, utterance or clip. Numbers are part of the reproducibility contract.
#pragma once

#include <cstdint>

namespace aerie::data::synth {

constexpr uint32_t kVoiceStream = 1;
constexpr uint32_t kPlanStream = 2;        // words, durations, level of an utterance
constexpr uint32_t kExcitationStream = 3;  // its noise sources
constexpr uint32_t kPitchStream = 4;       // its jitter, shimmer and intonation
constexpr uint32_t kNoisePlanStream = 5;
constexpr uint32_t kNoiseSampleStream = 6;
constexpr uint32_t kFloorStream = 7;  // recording noise of an utterance
constexpr uint32_t kLengthStream = 8;

// Positions of what is not an utterance of the corpus: voices and utterances inside babble.
constexpr uint64_t kBabbleVoices = uint64_t{1} << 48;
constexpr uint64_t kBabbleUtterances = uint64_t{1} << 48;

}  // namespace aerie::data::synth
