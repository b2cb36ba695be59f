#include "aerie/train/graph/upload_ring.h"

#include <cstring>
#include <utility>

namespace aerie::train {

Result<std::unique_ptr<UploadRing>> UploadRing::create(device::Stream& stream,
                                                       MakeHostMemory make) {
  std::unique_ptr<UploadRing> out(new UploadRing(stream, std::move(make)));
  out->slots_.resize(kSlots);
  for (Slot& slot : out->slots_) {
    AERIE_ASSIGN_OR_RETURN(slot.sent, stream.make_event());
  }
  return out;
}

Status UploadRing::upload(void* to, const void* from, size_t bytes) {
  Slot& slot = slots_[next_++ % slots_.size()];
  AERIE_RETURN_IF_ERROR(slot.sent->wait());
  if (slot.bytes < bytes) {
    slot.host = make_(bytes * 2);
    slot.bytes = bytes * 2;
  }
  std::memcpy(slot.host.get(), from, bytes);
  AERIE_RETURN_IF_ERROR(stream_.copy(to, slot.host.get(), bytes));
  return slot.sent->record();
}

}  // namespace aerie::train
