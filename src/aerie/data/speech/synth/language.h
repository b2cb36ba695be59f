// The synthetic language: a lexicon and a bigram grammar. Both are fixed, so that corpora made with
// different seeds speak the same language and a model trained on one can be tested on another.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/philox.h"

namespace aerie::data::synth {

struct Word {
  std::string text;
  std::vector<int> phonemes;
};

// Built on first use, then read-only: any thread.
class Language final {
 public:
  static const Language& instance();

  int num_words() const { return static_cast<int>(words_.size()); }
  const Word& word(int index) const { return words_[static_cast<size_t>(index)]; }

  int first_word(RandomStream& random) const;
  // Each word has kSuccessors words that may follow it, the k-th with a weight of 1 / (k + 1); now
  // and then (kSurprise) any word follows.
  int next_word(int previous, RandomStream& random) const;

  static constexpr int kSuccessors = 8;
  static constexpr double kSurprise = 0.05;

 private:
  Language();

  std::vector<Word> words_;
  std::vector<std::vector<int>> successors_;
};

}  // namespace aerie::data::synth
