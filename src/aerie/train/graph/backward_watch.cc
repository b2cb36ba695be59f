#include "aerie/train/graph/backward_watch.h"

#include <utility>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace aerie::train {

struct BackwardWatch::State {
  std::vector<int> part_of;  // of trainable parameters
  int parts = 0;
  std::function<void(int part)> written;  // empty: nobody asks
  std::vector<uint8_t> seen;
  std::vector<int64_t> missing;  // parameters of a part that have not come
  int next = -1;                 // the last part that is not complete

  void came(size_t trainable) {
    if (!written || std::exchange(seen[trainable], uint8_t{1}) != 0) return;
    --missing[static_cast<size_t>(part_of[trainable])];
    report();
  }
  void report() {
    for (; next >= 0 && missing[static_cast<size_t>(next)] == 0; --next) written(next);
  }
};

namespace {

struct Hook final : torch::autograd::PostAccumulateGradHook {
  explicit Hook(std::function<void()> call) : call_(std::move(call)) {}
  void operator()(const torch::autograd::Variable&) override { call_(); }
  std::function<void()> call_;
};

}  // namespace

BackwardWatch::BackwardWatch(nn::ParameterRegistry& registry, const FlatParts& parts)
    : registry_(registry), state_(std::make_shared<State>()) {
  state_->part_of = parts.of_trainable;
  state_->parts = parts.size();
  for (size_t t = 0; t < registry.trainable().size(); ++t)
    torch::autograd::impl::set_post_acc_grad_hooks(
        registry.tensor(registry.trainable()[t]),
        std::make_unique<Hook>([state = state_, t] { state->came(t); }));
}

BackwardWatch::~BackwardWatch() {
  for (const int64_t index : registry_.trainable())
    torch::autograd::impl::set_post_acc_grad_hooks(registry_.tensor(index), nullptr);
}

void BackwardWatch::arm(std::function<void(int part)> written) {
  state_->written = std::move(written);
  state_->seen.assign(state_->part_of.size(), 0);
  state_->missing.assign(static_cast<size_t>(state_->parts), 0);
  for (const int part : state_->part_of) ++state_->missing[static_cast<size_t>(part)];
  state_->next = state_->parts - 1;
}

void BackwardWatch::finish() {
  for (int64_t& missing : state_->missing) missing = 0;
  state_->report();
  state_->written = nullptr;
}

}  // namespace aerie::train
