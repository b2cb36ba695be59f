// libaerie_torch_graph.so for fake_torch_cuda.cc: a graph that does its work anew at every replay.
// Shows what is not among a graph's inputs and yet differs from step to step, and what the code
// around graphs does; not whether CUDA can capture the work.
#include <utility>

#include <c10/util/Exception.h>

#include "aerie/train/autograd/torch_graph.h"

namespace {

class Repeated final : public aerie::train::TorchGraph {
 public:
  void capture(std::function<void()> work) override { work_ = std::move(work); }
  void replay() override {
    TORCH_CHECK(work_, "nothing was captured");
    work_();
  }

 private:
  std::function<void()> work_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) aerie::train::TorchGraph* aerie_torch_graph_1(
    int) {
  return new Repeated();
}
