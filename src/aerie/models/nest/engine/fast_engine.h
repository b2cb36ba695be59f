// train::Engine for NEST on the kernels of aerie/kernels: the step from waveforms to updated
// weights is a fixed sequence over preallocated memory, captured per shape of batch as a CUDA
// graph. State (weights, moments, averages, scale) is the core's, so that checkpoints, imports and
// everything that is not the step are those of the reference engine.
//
//   submit()   copies the batch while the device computes, launches step and optimizer, returns
//              when the batch's memory is free again; nothing waits for results
//   collect()  results of steps whose event has passed
//
// A step ends with the decision about its update. The update itself overlaps the next pass through
// the model, on a few SMs and just ahead of the layers that read the weights; whatever else looks
// at the state has it finished first (finish_update()). The numbers are those of one after the
// other.
//
// Not in the core between steps: compute weights, BatchNorm statistics (one flat buffer, so that a
// skipped step is undone by one kernel) and step counts (one per segment). write_state() and
// state_written() carry them over.
//
// Out of memory can happen only before anything is launched. A batch that is cut runs part by part
// with the whole batch's number of masked frames as divisor.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "aerie/device/arena.h"
#include "aerie/kernels/kernel_table.h"
#include "aerie/kernels/side_stream.h"
#include "aerie/models/nest/engine/batch_intake.h"
#include "aerie/models/nest/engine/core_engine.h"
#include "aerie/models/nest/step/nest_step.h"
#include "aerie/train/graph/flat_optimizer.h"
#include "aerie/train/graph/graph_memory.h"
#include "aerie/train/graph/plan_cache.h"
#include "aerie/train/graph/result_ring.h"
#include "aerie/train/graph/upload_ring.h"
#include "aerie/train/ranks/device_phase.h"

namespace aerie::train {

// The type of tensors that hold what kernels compute with.
at::ScalarType torch_type(kernels::Dtype dtype);

class FastEngine final : public CoreEngine {
 public:
  // Why this configuration needs the reference engine; empty: it does not.
  static std::string not_covered(const config::RunConfig& config);

  static Result<std::unique_ptr<FastEngine>> create(const config::RunConfig& config,
                                                    at::Device device);
  // On the CPU with kernels of the caller's choice: the same engine without a GPU. `room`:
  // bytes that the audio of a batch may take, 0: as there are.
  static Result<std::unique_ptr<FastEngine>> create_on_host(const config::RunConfig& config,
                                                            const kernels::KernelTable& kernels,
                                                            size_t room = 0);
  ~FastEngine() override;

  bool is_fast() const override { return true; }
  int64_t max_in_flight() const override { return 2; }
  Status submit(const StepRequest& request) override;
  Result<std::vector<StepOutcome>> collect(bool wait) override;
  Result<EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed, uint64_t position) override;
  Status state_written() override;
  Status set_reducer(GradientReducer* reducer) override;
  Status set_exchange(kernels::ExchangeSums exchange, bool recordable) override;

  // Graphs at hand; for tests and reports.
  int64_t num_graphs() const;

 private:
  // A shape of micro-batch and how it enters the step.
  struct Shape {
    int64_t batch = 0, samples = 0;
    int64_t rows = 0;    // of the encoder: what is valid and a little, not batch * padded frames
    int64_t chosen = 0;  // of these, room for those in the loss
    bool training = true;
    bool part = false;    // of a batch that was cut
    bool global = false;  // its loss is divided by the frames of all ranks and micro-batches
    int64_t accumulate = 1;
    auto key() const {
      return std::tie(batch, samples, rows, chosen, training, part, global, accumulate);
    }
    bool operator<(const Shape& other) const { return key() < other.key(); }
  };
  struct Plan {
    Shape shape;
    kernels::NestStepConfig config;
    kernels::NestStepParams params;
    // The first micro-batch of a step writes gradients, the others add to them.
    std::array<std::unique_ptr<kernels::NestStep>, 2> step;
    // Ways to run it: either of these, and the same with gradients that are added up over ranks.
    PlanGraphs graphs{4};
  };
  struct MicroInfo {
    int64_t frames = 0;    // valid, behind the encoder
    int64_t room = 0;      // for those in the loss
    bool empty = false;    // a batch without rows
    bool no_mask = false;  // a cut batch without masked frames
    int64_t divisor = 0;   // of a global loss
  };
  struct Pending {
    int64_t step = 0;
    std::vector<MicroInfo> micros;
    int64_t first_runs = 0;
    // Of a global loss: the sum over ranks was divided by the first instead of the second.
    int64_t divisor = 0, frames = 0;
  };

  FastEngine(const config::RunConfig& config, at::Device device);
  // Where this engine's streams and memory come from.
  struct Source {
    std::function<Result<std::unique_ptr<device::Stream>>(bool high_priority)> make_stream;
    std::function<Result<std::unique_ptr<device::Arena>>()> make_arena, make_intake_arena;
  };
  Status start(std::unique_ptr<device::Stream> compute, const Source& source);
  Status probe();
  const char* kind() const override { return "fast"; }
  size_t own_memory_bytes() const override;
  Status write_state() override;
  // Of it, what is this rank's.
  Status write_own_state();

  Status refresh();

  // Of `count` items of a batch from `first` on, whose masks are drawn with the batch's key.
  Shape shape_of(const data::SpeechBatch& batch, int64_t first, int64_t count,
                 const nn::RandomKey& key) const;
  Result<Plan*> plan_for(const Shape& shape);
  Result<std::unique_ptr<Plan>> make_plan(const Shape& shape);
  const void* positions_of(int64_t frames, int64_t width);
  bool has_room_for(const kernels::NestStep& step) const;
  Status reserve(const Plan& plan);
  // Memory and plan of a micro-batch, which recomputes activations where it does not fit otherwise.
  Status prepare(const Shape& shape);
  kernels::NestStepInputs inputs_of(const Plan& plan) const;
  // Where the rows of a plan's audio go, (2B,N).
  float* audio_of(const Plan& plan) const;
  Status upload_inputs(const Plan& plan, const data::SpeechBatch& batch, int64_t first_item,
                       const nn::RandomKey& key, int64_t loss_rows);
  // `last`: of the window.
  Status run_plan(Plan& plan, bool accumulate, bool last);

  kernels::SavedState saved_state() const;  // what a skipped step undoes
  Status open_window();
  // `shapes`: of the batch, or of the parts it is cut into. `last`: no other micro-batch of the
  // window has samples.
  Status add_micro(const data::SpeechBatch& batch, const std::vector<Shape>& shapes,
                   const StepRequest& request, const nn::RandomKey& key, bool last);
  Status add_parts(const data::SpeechBatch& batch, const std::vector<Shape>& shapes,
                   const StepRequest& request, const nn::RandomKey& key, bool last,
                   MicroInfo& info);
  Status run_and_record(Plan& plan, bool add, bool last);
  // All memory that a request needs, before anything is launched.
  Status prepare_all(const StepRequest& request, std::vector<std::vector<Shape>>& shapes,
                     size_t& last);
  // Passes of a batch of so many rows: with an exchange all ranks make the same.
  int64_t passes(int64_t split, int64_t rows) const;
  Status exchange_nothing(int64_t passes);
  Status weigh(const StepRequest& request);
  Result<int64_t> masked_frames(const data::SpeechBatch& batch, const nn::RandomKey& key,
                                int64_t parts);
  bool shards() const { return core_->reducer() != nullptr && core_->reducer()->shards(); }
  // Whether the backward pass's own sums of squares are those of the step's gradients.
  bool sums_squares() const {
    return core_->reducer() == nullptr || core_->reducer()->keeps_gradients();
  }
  Status gather_weights();
  void show_weights();
  Status gather(const at::Tensor& flat);
  Status reduce_gradients();
  Status finish_step(const StepRequest& request);
  Status finish_update() override;
  int update_before(int part, const uint32_t* wanted);
  Status take_oldest();
  Status collect_all();
  Result<EvalOutcome> evaluate_in_parts(const data::SpeechBatch& batch, const nn::RandomKey& key);

  config::RunConfig config_;
  at::Device device_;
  kernels::DeviceModel device_model_;  // that plans are made for; on the host as for an H200
  std::optional<c10::Stream> stream_, previous_stream_;
  std::unique_ptr<device::Stream> compute_, copy_, update_;
  std::unique_ptr<kernels::SideStream> side_;
  std::unique_ptr<BatchIntake> intake_;

  kernels::Dtype dtype_ = kernels::Dtype::kF32;
  bool stale_ = true;           // what is derived from the core must be made again
  at::Tensor compute_weights_;  // compute weights; undefined in float32
  at::Tensor statistics_, saved_statistics_, counters_, saved_counters_;
  at::Tensor codebooks_, twiddles_, bands_, silent_tokens_;
  // Relative positions (2T-1 rows) of T encoder frames. A longer table holds those of fewer frames
  // in its middle; the shorter ones before it stay, because graphs hold their addresses.
  std::map<int64_t, at::Tensor> positions_;

  std::unique_ptr<UploadRing> uploads_;
  std::unique_ptr<DevicePhase> device_phase_;
  std::unique_ptr<FlatOptimizer> optimizer_;
  bool update_pending_ = false;  // the last step is decided, its weights are not written
  std::unique_ptr<device::Event> update_begin_;
  std::vector<std::unique_ptr<device::Event>> part_updated_;

  std::unique_ptr<GraphMemory> memory_;  // activations, shared by all plans
  std::unique_ptr<GraphMemory> inputs_;  // lengths and random state of a micro-batch
  std::unique_ptr<GraphMemory>
      square_partials_;  // sum-of-squares partials of its gradients (NestStepOutputs)
  std::unique_ptr<GraphMemory> whole_;  // audio of a batch that is cut into parts
  std::unique_ptr<PlanCache<Shape, Plan>> plans_;
  bool recompute_ = false;  // activations, since memory ran out
  at::Tensor outputs_;      // loss and number of masked frames of a micro-batch
  at::Tensor results_;  // of the window: AdamwControl, bad-loss flag, MicroResult per micro-batch
  // Offsets in the results.
  static constexpr size_t kBadLoss = 48, kLossSum = 52, kMicroResults = 64;
  static_assert(sizeof(kernels::AdamwControl) <= kBadLoss);
  int64_t max_micros_ = 0;

  std::unique_ptr<ResultRing<Pending>> under_way_;

  bool window_open_ = false;
  bool window_has_gradients_ = false;
  bool window_reduced_ = false;  // the last pass has added them up over ranks
  int reduce_code_ = 0;          // of the reducer's last call, made from inside a plan
  // What is in square_partials_, from the micro-batch that wrote the gradients last.
  size_t window_square_partials_ = 0;
  FlatOptimizer::Squared window_squared_;
  std::vector<MicroInfo> window_;
  int64_t window_first_runs_ = 0;
  int64_t window_divisor_ = 0, window_frames_ = 0;  // of a global loss: used so far, known now
  at::Tensor squared_norm_over_ranks_;              // of sharded gradients
  at::Tensor float_weights_;  // elements of the flat weights that passes read in float32
};

}  // namespace aerie::train
