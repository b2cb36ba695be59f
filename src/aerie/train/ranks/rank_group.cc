#include "aerie/train/ranks/rank_group.h"

#include <cstdint>

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace aerie::train {

OnStream::OnStream(at::Device device, void* stream) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  if (guard.getStream(device).native_handle() == stream) return;
  // How torch numbers streams that are not its own.
  const c10::Stream other(c10::Stream::UNSAFE, device, reinterpret_cast<int64_t>(stream));
  TORCH_CHECK(other.native_handle() == stream, "torch does not take this stream");
  const c10::Stream before = guard.exchangeStream(other);
  back_ = [guard, before] { guard.exchangeStream(before); };
}

OnStream::~OnStream() {
  if (back_) back_();
}

}  // namespace aerie::train
