#include <algorithm>
#include <sys/mman.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/device/arena.h"

namespace aerie::device {
namespace {

// Addresses cost nothing; more than any machine's memory.
constexpr size_t kReserved = size_t{1} << 40;
constexpr size_t kPage = size_t{2} << 20;

class HostArena final : public Arena {
 public:
  HostArena(void* base, size_t most) : base_(base), most_(most) {}
  ~HostArena() override { ::munmap(base_, kReserved); }
  void* data() const override { return size_ > 0 ? base_ : nullptr; }
  size_t size() const override { return size_; }
  Status grow(size_t bytes) override {
    const size_t wanted = (bytes + kPage - 1) / kPage * kPage;
    if (wanted <= size_) return ok_status();
    if (wanted > most_ || ::mprotect(base_, wanted, PROT_READ | PROT_WRITE) != 0)
      return out_of_memory(str_cat("no host memory for ", human_bytes(static_cast<double>(bytes))));
    size_ = wanted;
    return ok_status();
  }

 private:
  void* base_;
  size_t most_;
  size_t size_ = 0;
};

}  // namespace

Result<std::unique_ptr<Arena>> host_arena(size_t most) {
  void* base =
      ::mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return out_of_memory("no address space for the memory of a step");
  return std::unique_ptr<Arena>(
      std::make_unique<HostArena>(base, most > 0 ? std::min(most, kReserved) : kReserved));
}

}  // namespace aerie::device
