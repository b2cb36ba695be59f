#include "aerie/base/mapping_guard.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unistd.h>

#include "aerie/base/printable.h"

namespace aerie {

namespace {

// Mappings in a list that only grows: a signal handler may walk it at any time. Places are used
// again, their names are never freed while the list may show them.
struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<size_t> size{0};
  std::atomic<const char*> path{nullptr};
  Mapping* next = nullptr;
};
std::atomic<Mapping*> mappings{nullptr};
static_assert(std::atomic<uintptr_t>::is_always_lock_free, "must be usable in a signal handler");

std::mutex& writers() {
  static std::mutex* const mutex = new std::mutex;  // mappings may end after main
  return *mutex;
}

struct sigaction handler_before;

// Only async-signal-safe calls from here on.
void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void handle_bus_error(int signal_number, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;  // by a process: there is no address
  const auto address = sent ? 0 : reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Mapping* mapping = mappings.load(); mapping != nullptr; mapping = mapping->next) {
    const uintptr_t begin = mapping->begin.load();
    if (begin == 0 || address < begin || address - begin >= mapping->size.load()) continue;
    say("\nerror: '");
    say(mapping->path.load());
    say("' was cut short while it was in use, or its disk failed: a part of it is gone (delete it "
        "and start again; files in use may be replaced, never changed in place)\n");
    ::_exit(3);
  }
  // Not ours: as if the guard were not there. The instruction is tried again and meets it.
  ::sigaction(signal_number, &handler_before, nullptr);
  if (sent) ::raise(signal_number);
}

}  // namespace

void install_mapping_guard() {
  struct sigaction action {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &handler_before);
}

void add_guarded_mapping(const void* data, size_t size, const std::string& path) {
  const std::lock_guard lock(writers());
  Mapping* place = mappings.load();
  while (place != nullptr && place->begin.load() != 0) place = place->next;
  if (place == nullptr) {
    place = new Mapping;
    place->next = mappings.load();
    mappings.store(place);
  }
  delete[] place->path.load();  // of a mapping that has ended: nobody can fault in it any more
  const std::string shown = printable(path);
  char* const name = new char[shown.size() + 1];
  std::memcpy(name, shown.c_str(), shown.size() + 1);
  place->path.store(name);
  place->size.store(size);
  place->begin.store(reinterpret_cast<uintptr_t>(data));
}

void remove_guarded_mapping(const void* data) {
  const std::lock_guard lock(writers());
  for (Mapping* mapping = mappings.load(); mapping != nullptr; mapping = mapping->next)
    if (mapping->begin.load() == reinterpret_cast<uintptr_t>(data)) {
      mapping->begin.store(0);
      return;
    }
}

}  // namespace aerie
