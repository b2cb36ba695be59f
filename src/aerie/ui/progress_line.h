// The line a training run keeps on the terminal, or plain lines where there is none.
//
//   step 1200/5000 ep 3  loss 5.213  lr 1.2e-03  8.41 it/s  2018 audio-s/s  data 0.3 %  GPU 96
//   % 3.1 GiB  ETA 7 min 31 s
//
// One thread. Log lines appear above the line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/clock.h"

namespace aerie::ui {

// What a terminal shows.
struct ProgressInfo {
  int64_t step = 0;
  int64_t planned_steps = -1;
  int64_t epoch = 0;
  double smoothed_loss = 0.0;
  double learning_rate = 0.0;
  double steps_per_s = 0.0;
  double throughput = 0.0;
  double data_wait_share = 0.0;
  std::optional<double> gpu_util, gpu_mem_gib;
  double eta_s = -1.0;
  std::string activity;      // "train", "validate"
  int64_t done = 0, of = 0;  // batches of a validation
};

struct ProgressLineOptions {
  bool terminal = false;  // redraw one line; otherwise print a plain line every plain_interval_s
  double plain_interval_s = 10.0;
  std::string throughput_unit = "samples/s";
  int width = 0;  // columns; 0: the terminal's
  Clock* clock = nullptr;
  std::function<void(std::string_view)> write;  // empty: stderr
};

class ProgressLine {
 public:
  explicit ProgressLine(ProgressLineOptions options);
  ~ProgressLine();  // takes the line away
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const ProgressInfo& info);
  void finish();

 private:
  void write(std::string_view text);
  void erase();

  ProgressLineOptions options_;
  double next_s_ = 0.0;
  bool visible_ = false;
  std::string last_;
};

std::string format_progress_line(const ProgressInfo& info, const std::string& throughput_unit);
// At most `width` - 1 columns: the least important parts go first, the end is never cut through.
std::string fit_progress_line(const std::string& line, int width);

}  // namespace aerie::ui
