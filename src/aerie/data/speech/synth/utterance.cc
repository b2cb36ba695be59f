#include "aerie/data/speech/synth/utterance.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/check.h"
#include "aerie/base/philox.h"
#include "aerie/data/speech/synth/language.h"
#include "aerie/data/speech/synth/streams.h"

namespace aerie::data::synth {

namespace {

constexpr double kFrameMs = kFrameSeconds * 1e3;

struct Sound {
  int phoneme;
  double frames;
  bool accented;
};

double spread(RandomStream& random, double deviation) {
  return std::exp(deviation * std::clamp<double>(random.normal(), -2.0, 2.0));
}

// Stress is on the first syllable: up to the first vowel. Stressed sounds are longer.
void append_word(std::vector<Sound>& sounds, const Word& word, const Voice& voice,
                 RandomStream& random) {
  bool stressed = true;
  for (const int index : word.phonemes) {
    const Phoneme& sound = phoneme(index);
    const double stretch = stressed && sound.kind == SoundKind::kVowel ? 1.25 : 1.0;
    const double ms = sound.duration_ms * stretch * spread(random, voice.rate_spread) / voice.rate;
    sounds.push_back({index, std::max(8.0, ms / kFrameMs), stressed});
    if (sound.kind == SoundKind::kVowel) stressed = false;
  }
}

}  // namespace

UtterancePlan plan_utterance(uint64_t seed, uint64_t index, const Voice& voice, int num_frames) {
  AERIE_CHECK(num_frames >= 160, "an utterance of ", num_frames, " frames");
  RandomStream random(seed, Purpose::kSynth, kPlanStream, index);
  const Language& language = Language::instance();
  const double lead = random.uniform(60.0, 200.0) / kFrameMs;
  const double trail = random.uniform(60.0, 200.0) / kFrameMs;
  const double room = static_cast<double>(num_frames) - lead - trail;

  UtterancePlan plan;
  plan.num_frames = num_frames;
  std::vector<Sound> sounds{{kSilence, lead, false}};
  double used = 0.0;
  for (int word = language.first_word(random);; word = language.next_word(word, random)) {
    std::vector<Sound> next;
    append_word(next, language.word(word), voice, random);
    double length = 0.0;
    for (const Sound& sound : next) length += sound.frames;
    // The word that overshoots is taken when that misses the target by less than leaving it out.
    const bool first = plan.text.empty();
    if (!first && used + length - room > room - used) break;
    if (!first) plan.text += ' ';
    plan.text += language.word(word).text;
    sounds.insert(sounds.end(), next.begin(), next.end());
    used += length;
    if (used >= room) break;
    if (random.uniform() < voice.pause_chance) {
      // The last sound before a pause is drawn out.
      Sound& last = sounds.back();
      used += 0.3 * last.frames;
      last.frames *= 1.3;
      const double pause = random.uniform(80.0, 350.0) / kFrameMs;
      sounds.push_back({kSilence, pause, false});
      used += pause;
    }
  }
  if (sounds.back().phoneme == kSilence) {
    sounds.back().frames += trail;
  } else {
    sounds.push_back({kSilence, trail, false});
  }

  double total = 0.0;
  for (const Sound& sound : sounds) total += sound.frames;
  const double stretch = static_cast<double>(num_frames) / total;
  double at = 0.0;
  int begin = 0;
  for (const Sound& sound : sounds) {
    at += sound.frames * stretch;
    const int end = std::min(num_frames, static_cast<int>(std::lround(at)));
    if (end > begin) plan.phonemes.push_back({sound.phoneme, begin, end, sound.accented});
    begin = std::max(begin, end);
  }
  plan.phonemes.back().end_frame = num_frames;
  return plan;
}

}  // namespace aerie::data::synth
