// `aerie probe`: how much a linear classifier reads out of frozen features. Free of torch.
//
// Phoneme: the label at the centre of every encoder frame (80 ms for NEST). Fitted on noisy
// utterances of the training manifest; the layer is chosen on the development manifest; the result
// is measured on noisy utterances of the test manifest, whose voices should be unseen.
//
// Speaker: the mean of an utterance's frames. Unseen voices cannot be named, so the result is
// measured on further utterances of the training manifest, which no probe was fitted on; the layer
// is chosen on the development manifest as far as its speakers are known.
//
// Any other label of an utterance (`labels`) likewise; it is measured on the test manifest where
// its values are known there.
//
// Compared with
//   random weights   the same encoder, initialised with another seed
//   log-mel frames   the preprocessor's normalised features of the same frame, stacked (8 x 80).
//                    Speakers: the mean of the features before normalisation, since afterwards
//                    every utterance has mean 0
//   frame energy     one number per frame: log power, less the utterance's mean (speakers: the
//   mean) largest class    what always guessing it gives
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::probe {

struct ProbeOptions {
  std::string model;   // see models/nest/restore.h
  std::string config;  // YAML, for weights that come without
  std::string train;   // manifests
  std::string dev;
  std::string test;
  std::string noise;       // mixed into everything; empty: clean
  std::string noise_test;  // for the test part instead of `noise`
  int64_t train_utterances = 400;
  int64_t dev_utterances = 100;
  int64_t test_utterances = 150;
  int64_t speaker_utterances = 150;  // held out of training for the speaker test
  double min_snr_db = 0.0;
  double max_snr_db = 15.0;
  uint64_t seed = 1234;  // choice of utterances, mixing, random weights
  // Weights of the L2 penalty; every probe uses the best of them on the development part, so that
  // features of any width and scale are compared at their best.
  std::vector<double> l2 = {1e-2, 1e-3, 1e-4};
  int max_iterations = 100;  // of the optimizer, for each probe
  bool random_weights = true;
  bool log_mel = true;
  std::vector<std::string> labels = {"speaker"};  // fields of the manifests, one task each
  std::string device = "auto";

  Status validate() const;
};

// One kind of features in one task. Layers count from 0.
struct SourceScore {
  std::string name;  // "trained", "random", "log_mel", "energy"
  bool has_layers = false;
  std::vector<double> dev;   // accuracy per layer; one entry without layers
  std::vector<double> test;  // likewise
  std::vector<double> l2;    // chosen on dev, likewise
  size_t best = 0;           // highest on dev, the first of equals

  double best_dev() const { return dev[best]; }
  double best_test() const { return test[best]; }
};

struct TaskReport {
  std::string name;     // "phoneme", or the field: "speaker"
  std::string skipped;  // why there is nothing below; empty: there is
  int64_t num_classes = 0;
  int64_t num_train = 0;  // frames or utterances
  int64_t num_dev = 0;
  int64_t num_test = 0;
  int64_t num_test_speakers = 0;
  int64_t num_unseen_speakers = 0;  // of those, how many are not in the training part
  bool on_test_part = true;         // false: tested on held-out utterances of --train
  double largest_class = 0.0;       // of the test part
  std::vector<SourceScore> sources;

  const SourceScore* find(const std::string& source) const;  // null: not measured
  bool of_frames() const { return name == "phoneme"; }       // else of utterances
  // Whether a source had the same to go by as the model: for utterances log-mel features have more.
  bool comparable(const std::string& source) const;
  // Test accuracy of the trained model's best layer above another source's, in points.
  double margin(const std::string& source) const;
};

struct ProbeReport {
  std::string model;
  int64_t num_layers = 0;
  int64_t width = 0;
  double frame_s = 0.0;
  int64_t stacked_frames = 0;  // log-mel frames per encoder frame
  int64_t num_train = 0;       // utterances
  int64_t num_dev = 0;
  int64_t num_test = 0;
  int64_t num_speaker_test = 0;
  bool noisy = false;
  double min_snr_db = 0.0;
  double max_snr_db = 0.0;
  std::vector<std::string> notes;
  std::vector<TaskReport> tasks;
  double elapsed_s = 0.0;
};

// Stops when a signal came (signals.h): kCancelled.
Result<ProbeReport> run_probe(const ProbeOptions& options, Env& env = Env::real());

std::string report_text(const ProbeReport& report);  // the table
std::string report_json(const ProbeReport& report);

}  // namespace aerie::probe
