#include "aerie/train/ranks/c10d_group.h"

#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "aerie/base/spans.h"

namespace aerie::train {
namespace {

class C10dGroup final : public RankGroup {
 public:
  C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, dist::ProcessGroup* of)
      : group_(std::move(group)), of_(of) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  bool recordable(at::Device device) const override { return is_nccl(device); }
  bool reduces_to_one(at::Device device) const override { return is_nccl(device); }

  Wait all_reduce(std::vector<at::Tensor> tensors, Op op) override {
    c10d::AllreduceOptions options;
    options.reduceOp = torch_op(tensors.front().device(), op);
    auto works = start(tensors, [&](std::vector<at::Tensor>& one, size_t) {
      return group_->allreduce(one, options);
    });
    return waiting(std::move(works), std::move(tensors), divisor(options.reduceOp, op));
  }

  Wait reduce(std::vector<Piece> pieces, Op op) override {
    c10d::ReduceOptions options;
    options.reduceOp = torch_op(pieces.front().tensor.device(), op);
    std::vector<at::Tensor> tensors, mine;
    for (const Piece& piece : pieces) {
      tensors.push_back(piece.tensor);
      if (piece.rank == rank()) mine.push_back(piece.tensor);
    }
    auto works = start(tensors, [&](std::vector<at::Tensor>& one, size_t i) {
      options.rootRank = pieces[i].rank;
      return group_->reduce(one, options);
    });
    return waiting(std::move(works), std::move(mine), divisor(options.reduceOp, op));
  }

  Wait broadcast(std::vector<Piece> pieces) override {
    std::vector<at::Tensor> tensors;
    for (const Piece& piece : pieces) tensors.push_back(piece.tensor);
    auto works = start(tensors, [&](std::vector<at::Tensor>& one, size_t i) {
      c10d::BroadcastOptions options;
      options.rootRank = pieces[i].rank;
      return group_->broadcast(one, options);
    });
    return waiting(std::move(works), std::move(tensors), 1.0);
  }

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

  bool is_nccl(at::Device device) const {
    return device.is_cuda() && group_->getBackend(device.type())->getBackendName() == "nccl";
  }

  c10d::ReduceOp torch_op(at::Device device, Op op) const {
    if (op == Op::kMax) return c10d::ReduceOp::MAX;
    // NCCL divides as it adds up; Gloo cannot. The mean of one rank is its sum, for which NCCL need
    // not touch the values.
    if (op == Op::kMean && is_nccl(device) && size() > 1) return c10d::ReduceOp::AVG;
    return c10d::ReduceOp::SUM;
  }
  double divisor(const c10d::ReduceOp& used, Op op) const {
    return op == Op::kMean && used == c10d::ReduceOp::SUM ? size() : 1.0;
  }

  // One collective per tensor; NCCL's are launched together.
  template <typename Start>
  Works start(const std::vector<at::Tensor>& tensors, const Start& start_one) {
    TORCH_CHECK(!tensors.empty(), "a collective without tensors");
    const at::Device device = tensors.front().device();
    const bool together = tensors.size() > 1 && is_nccl(device);
    Works works;
    if (together) group_->startCoalescing(device.type());
    for (size_t i = 0; i < tensors.size(); ++i) {
      std::vector<at::Tensor> one{tensors[i]};
      auto work = start_one(one, i);
      if (!together) works.push_back(std::move(work));
    }
    if (together) works.push_back(group_->endCoalescing(device.type()));
    return works;
  }

  Wait waiting(Works works, std::vector<at::Tensor> tensors, double divisor) const {
    return [of = of_, works = std::move(works), tensors = std::move(tensors), divisor] {
      {
        const dist::PhaseScope phase(of, dist::Phase::kAllReduce);
        const SpanScope span(kWaitSpan);
        for (const auto& work : works) work->wait();
      }
      if (divisor == 1.0) return;
      for (at::Tensor tensor : tensors) tensor.mul_(1.0 / divisor);
    };
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  dist::ProcessGroup* of_;
};

}  // namespace

std::unique_ptr<RankGroup> make_rank_group(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           dist::ProcessGroup* of) {
  return std::make_unique<C10dGroup>(std::move(group), of);
}

}  // namespace aerie::train
