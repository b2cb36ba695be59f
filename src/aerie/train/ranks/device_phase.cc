#include "aerie/train/ranks/device_phase.h"

#include <cstring>

#include <ATen/ops/arange.h>

#include "aerie/kernels/types.h"

namespace aerie::train {

DevicePhase::DevicePhase(device::Stream& stream, at::Device device, const MakeHostMemory& make)
    : stream_(stream),
      numbers_(at::arange(dist::kNumPhases, at::TensorOptions().dtype(at::kInt)).to(device)),
      word_(make(sizeof(int32_t))) {
  constexpr int32_t kNowhere = -1;
  std::memcpy(word_.get(), &kNowhere, sizeof(kNowhere));
}

DevicePhase::~DevicePhase() {
  tell(nullptr);
}

void DevicePhase::tell(dist::ProcessGroup* group) {
  if (group == group_) return;
  if (group_ != nullptr) group_->follow_device(nullptr);
  group_ = group;
  if (group_ != nullptr) group_->follow_device(reinterpret_cast<const int32_t*>(word_.get()));
}

int DevicePhase::mark(dist::Phase phase) const {
  if (group_ == nullptr) return kernels::kOk;
  const int32_t* from = numbers_.const_data_ptr<int32_t>() + static_cast<int32_t>(phase);
  return stream_.copy(word_.get(), from, sizeof(*from)).ok() ? kernels::kOk : kernels::kUnsupported;
}

}  // namespace aerie::train
