// The processes that train together, as the rest of aerie sees them: values of the host added up,
// gathered and handed round, and a watch that notices when one of them is lost or silent. Tensors
// and gradients go through the same group by torch_group.h; nothing here includes torch.
//
// Every rank makes the same calls in the same order. Calls come from one thread at a time, unless
// said otherwise. When a rank is lost or silent, calls that wait return an error that names it, and
// so does check(); the group is of no use then and the process ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/phase.h"
#include "aerie/dist/world.h"

namespace aerie::dist {

struct GroupOptions {
  std::string backend = "gloo";  // of tensors: "gloo" or "nccl"; values of the host go by Gloo
  double timeout_s = 1800;       // a collective that takes longer fails
  double join_timeout_s = 300;   // until all ranks have met
  double heartbeat_s = 60;       // a rank that says nothing for so long is given up
  int gpu_index = -1;            // the device of this rank among the visible ones; -1: the CPU
  // Whether a process that hangs while another rank is lost is ended (after a message); else only
  // check() and waiting calls tell.
  bool end_process = true;
};

// Why a rank cannot go on because of another one.
struct RankLoss {
  enum class Kind {
    kLost,    // its process ended
    kSilent,  // it hangs, or the network to it is cut
    kFailed,  // it said so and why
  };
  Kind kind = Kind::kLost;
  int rank = 0;
  Status status;  // names rank, host, phase and its last log lines
};

class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  virtual const World& world() const = 0;
  int rank() const { return world().rank; }
  int size() const { return world().size; }
  virtual const std::string& host_of(int rank) const = 0;

  // Each value becomes the sum (largest) of what the ranks have in its place.
  virtual Status sum(std::span<double> values) = 0;
  virtual Status sum(std::span<int64_t> values) = 0;
  virtual Status max(std::span<int64_t> values) = 0;
  // What `root` has, of any length.
  virtual Status broadcast(std::string& bytes, int root) = 0;
  // What every rank has, in the order of ranks; lengths may differ.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine) = 0;
  virtual Status barrier() = 0;

  // What this rank is doing from now on; from any thread, costs one store.
  virtual void set_phase(Phase phase) = 0;
  virtual Phase phase() const = 0;
  // Where the device is (a number of Phase, in memory that it writes; negative: nowhere). Others
  // are told this while the phase is kForward, in which a host launches whole steps. Null: nobody
  // says it. The memory lives until the next call; from any thread.
  virtual void follow_device(const int32_t* /*phase*/) {}
  // An error that names rank, host and phase once another rank is lost, silent or has failed. From
  // any thread.
  virtual Status check() const = 0;
  // What check() is about.
  virtual std::optional<RankLoss> loss() const { return std::nullopt; }
  // What is behind an error that a collective of torch gave: the rank that was lost, when one was
  // (which may take a moment to be known), otherwise `error` itself. From any thread.
  virtual Status explain(Status error) const = 0;
  // This rank cannot go on: the others are told why and end too.
  virtual void fail(const Status& why) = 0;
  // This rank is done; its end is no loss. No calls afterwards; engines and what they have captured
  // are gone.
  virtual void leave() = 0;
};

// A phase as long as a scope, then what was there before; a null group is allowed.
class PhaseScope final {
 public:
  PhaseScope(ProcessGroup* group, Phase phase)
      : group_(group), before_(group == nullptr ? Phase::kStart : group->phase()) {
    if (group_ != nullptr) group_->set_phase(phase);
  }
  ~PhaseScope() {
    if (group_ != nullptr) group_->set_phase(before_);
  }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  ProcessGroup* const group_;
  const Phase before_;
};

}  // namespace aerie::dist
