#include "aerie/data/speech/synth/language.h"

#include <algorithm>
#include <utility>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/synth/phonemes.h"

namespace aerie::data::synth {

namespace {

struct Entry {
  const char* text;
  const char* phonemes;
};

// Invented words of one to three syllables in which every phoneme occurs at least five times.
constexpr Entry kLexicon[] = {
    {"behi", "b e h i"},
    {"beshe", "b e sh e"},
    {"bonep", "b o n e p"},
    {"buzody", "b u z o d ax"},
    {"dagy", "d a g ax"},
    {"denum", "d e n u m"},
    {"dikyt", "d i k ax t"},
    {"dozu", "d o z u"},
    {"dushi", "d u sh i"},
    {"duwonar", "d u w o n a r"},
    {"eza", "e z a"},
    {"foby", "f o b ax"},
    {"gi", "g i"},
    {"gizo", "g i z o"},
    {"gor", "g o r"},
    {"guhi", "g u h i"},
    {"ha", "h a"},
    {"hake", "h a k e"},
    {"hata", "h a t a"},
    {"hi", "h i"},
    {"ina", "i n a"},
    {"isy", "i s ax"},
    {"kenshapu", "k e n sh a p u"},
    {"kita", "k i t a"},
    {"ku", "k u"},
    {"lanetbyt", "l a n e t b ax t"},
    {"lato", "l a t o"},
    {"lefomi", "l e f o m i"},
    {"letwa", "l e t w a"},
    {"lilersi", "l i l e r s i"},
    {"lufo", "l u f o"},
    {"matu", "m a t u"},
    {"mu", "m u"},
    {"muzo", "m u z o"},
    {"ne", "n e"},
    {"ni", "n i"},
    {"nukfi", "n u k f i"},
    {"ohysh", "o h ax sh"},
    {"pasbup", "p a s b u p"},
    {"poku", "p o k u"},
    {"puhir", "p u h i r"},
    {"ragyby", "r a g ax b ax"},
    {"rermy", "r e r m ax"},
    {"resheka", "r e sh e k a"},
    {"rihy", "r i h ax"},
    {"ropomyl", "r o p o m ax l"},
    {"sap", "s a p"},
    {"segoshe", "s e g o sh e"},
    {"shez", "sh e z"},
    {"sish", "s i sh"},
    {"tase", "t a s e"},
    {"ti", "t i"},
    {"wal", "w a l"},
    {"wapumkok", "w a p u m k o k"},
    {"wisnom", "w i s n o m"},
    {"wus", "w u s"},
    {"zarwymy", "z a r w ax m ax"},
    {"zimom", "z i m o m"},
    {"zosho", "z o sh o"},
    {"zugyf", "z u g ax f"},
};

// Not the user's seed: the grammar belongs to the language, not to a corpus.
constexpr uint64_t kLanguageSeed = 60;

}  // namespace

const Language& Language::instance() {
  static const Language language;
  return language;
}

Language::Language() {
  for (const Entry& entry : kLexicon) {
    Word word{entry.text, {}};
    for (const std::string& label : split(entry.phonemes, ' ')) {
      const int index = find_phoneme(label);
      AERIE_CHECK(index > 0, "phoneme ", label, " of ", entry.text);
      word.phonemes.push_back(index);
    }
    words_.push_back(std::move(word));
  }
  for (size_t w = 0; w < words_.size(); ++w) {
    RandomStream random(kLanguageSeed, Purpose::kSynth, 0, w);
    std::vector<int>& next = successors_.emplace_back();
    while (next.size() < kSuccessors) {
      const int candidate = static_cast<int>(random.below(words_.size()));
      if (candidate != static_cast<int>(w) &&
          std::find(next.begin(), next.end(), candidate) == next.end())
        next.push_back(candidate);
    }
  }
}

int Language::first_word(RandomStream& random) const {
  return static_cast<int>(random.below(words_.size()));
}

int Language::next_word(int previous, RandomStream& random) const {
  if (random.uniform() < kSurprise) return first_word(random);
  double total = 0.0;
  for (int k = 0; k < kSuccessors; ++k) total += 1.0 / (k + 1);
  double left = random.uniform() * total;
  for (int k = 0; k < kSuccessors; ++k) {
    left -= 1.0 / (k + 1);
    if (left < 0.0) return successors_[static_cast<size_t>(previous)][static_cast<size_t>(k)];
  }
  return successors_[static_cast<size_t>(previous)][0];
}

}  // namespace aerie::data::synth
