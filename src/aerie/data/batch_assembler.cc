#include "aerie/data/batch_assembler.h"

#include "aerie/base/strings.h"
#include "aerie/base/system.h"

namespace aerie::data {

bool MemoryBudget::take(uint64_t bytes) {
  uint64_t used = used_.load();
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

Status BatchMemory::take(HostBlock& block, uint64_t bytes,
                         const std::function<MemoryWords()>& words) const {
  if (bytes <= block.bytes()) return ok_status();
  give_back(block);
  if (!budget->take(bytes)) {
    const MemoryWords text = words();
    return out_of_memory(str_cat(text.what, " needs ", human_bytes(static_cast<double>(bytes)),
                                 "; the loader may use ",
                                 human_bytes(static_cast<double>(budget->limit())), text.where))
        .with_hint(text.budget_hint);
  }
  if (block.reserve(*allocator, bytes)) return ok_status();
  budget->give(bytes);
  const MemoryWords text = words();
  return out_of_memory(str_cat("no ", allocator->kind(), " memory for a batch of ",
                               human_bytes(static_cast<double>(bytes)), text.where))
      .with_hint(text.memory_hint);
}

void BatchMemory::give_back(HostBlock& block) const {
  budget->give(block.bytes());
  block.reset();
}

Status BatchAssembler::too_large(uint64_t batch_bytes, uint64_t machine_bytes) const {
  return data_error(str_cat("batches of ", human_bytes(static_cast<double>(batch_bytes)),
                            " do not fit into this machine's ",
                            human_bytes(static_cast<double>(machine_bytes))))
      .with_hint(str_cat("lower ", size_keys()));
}

}  // namespace aerie::data
