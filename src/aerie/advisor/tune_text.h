// What `aerie tune` prints and writes.
#pragma once

#include <optional>
#include <string>

#include "aerie/advisor/tune_search.h"

namespace aerie::advisor {

enum class RateRule { kKeep, kLinear, kSqrt };
// "linear" or "sqrt".
Result<RateRule> parse_rate_rule(const std::string& text);

// The learning rate for a batch `ratio` times as large.
double scaled_rate(double rate, double ratio, RateRule rule);

// Where and how a search ran, for what is printed about it.
struct TuneStory {
  std::string command;  // as typed
  std::string date;     // ISO
  std::string machine;  // "NVIDIA H200, 139.8 GiB; 16 CPUs"
  std::string version;
  double elapsed_s = 0.0;
  RateRule rate = RateRule::kKeep;  // what was applied
  std::string file;                 // of the written configuration; empty: none was
  std::string train_command;        // that trains with it
};

// Overrides of the choice, the learning rate included where a rule is applied.
std::vector<std::string> final_changes(const TuneSpace& space, const TuneResult& result,
                                       RateRule rate);
// One line for a trial, for progress and for the table.
std::string row_text(const TuneSpace& space, const TriedRow& row);
// Both rules and what became of them; empty: the batch is what it was.
std::string rate_sentence(const TuneSpace& space, const TuneResult& result, RateRule applied);

std::string tune_text(const TuneSpace& space, const TuneResult& result, const TuneStory& story);
std::string tune_json(const TuneSpace& space, const TuneResult& result, const TuneStory& story);
// The comment at the head of the written configuration, every line with its '#'.
std::string tune_header(const TuneSpace& space, const TuneResult& result, const TuneStory& story);

}  // namespace aerie::advisor
