#include "aerie/dist/board.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "aerie/base/parse.h"
#include "aerie/dist/world.h"

namespace aerie::dist {

namespace {

constexpr uint32_t kLines = 12;
constexpr size_t kLineBytes = 400;

}  // namespace

struct Board::Place {
  std::atomic<int32_t> phase;
  std::atomic<int32_t> ended_for_other;
  std::atomic<int32_t> said_why;
  std::atomic<int32_t> given_up;
  std::atomic<uint32_t> lines_said;
  char lines[kLines][kLineBytes];
};
static_assert(std::atomic<int32_t>::is_always_lock_free, "shared between processes");

struct Board::Shared {
  char run_folder[4096];
  Place places[1];  // as many as there are ranks
};

Result<Board> Board::map(int fd, int ranks) {
  const size_t bytes = sizeof(Shared) + sizeof(Place) * static_cast<size_t>(ranks);
  struct stat stat = {};
  if (fstat(fd, &stat) != 0 || static_cast<size_t>(stat.st_size) < bytes)
    return unavailable("the memory shared with the launcher is not there");
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return errno_error("cannot map shared memory", errno);
  return Board(fd, ranks, static_cast<Shared*>(memory));
}

Result<Board> Board::create(int ranks) {
  const int fd = memfd_create("aerie-ranks", 0);  // children inherit it
  if (fd < 0) return errno_error("cannot make shared memory", errno);
  const size_t bytes = sizeof(Shared) + sizeof(Place) * static_cast<size_t>(ranks);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    return errno_error("cannot make shared memory", error);
  }
  return map(fd, ranks);
}

Board* Board::inherited() {
  static const std::unique_ptr<Board> board = []() -> std::unique_ptr<Board> {
    const auto fd = parse_int64(process_variable("AERIE_BOARD_FD"), 0, 1 << 20);
    const auto rank = parse_int64(process_variable("LOCAL_RANK"), 0, 1 << 20);
    const auto ranks = parse_int64(process_variable("LOCAL_WORLD_SIZE"), 1, 1 << 20);
    if (!fd.ok() || !rank.ok() || !ranks.ok() || *rank >= *ranks) return nullptr;
    auto mapped = map(static_cast<int>(*fd), static_cast<int>(*ranks));
    if (!mapped.ok()) return nullptr;
    auto out = std::make_unique<Board>(std::move(mapped).value());
    out->own_rank_ = static_cast<int>(*rank);
    return out;
  }();
  return board.get();
}

Board::Board(Board&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      ranks_(other.ranks_),
      own_rank_(other.own_rank_),
      shared_(std::exchange(other.shared_, nullptr)) {}

Board::~Board() {
  if (shared_ != nullptr)
    munmap(shared_, sizeof(Shared) + sizeof(Place) * static_cast<size_t>(ranks_));
  if (fd_ >= 0) close(fd_);
}

Board::Place& Board::place(int rank) const {
  AERIE_CHECK(rank >= 0 && rank < ranks_, "rank ", rank, " of ", ranks_);
  return shared_->places[rank];
}

void Board::set_phase(int rank, Phase phase) {
  place(rank).phase.store(static_cast<int32_t>(phase), std::memory_order_relaxed);
}

Phase Board::phase(int rank) const {
  const int32_t phase = place(rank).phase.load(std::memory_order_relaxed);
  return phase >= 0 && phase < kNumPhases ? static_cast<Phase>(phase) : Phase::kStart;
}

void Board::add_line(int rank, std::string_view line) {
  Place& at = place(rank);
  const uint32_t said = at.lines_said.load(std::memory_order_relaxed);
  char* text = at.lines[said % kLines];
  const size_t length = std::min(line.size(), kLineBytes - 1);
  std::memcpy(text, line.data(), length);
  text[length] = '\0';
  at.lines_said.store(said + 1, std::memory_order_release);
}

std::vector<std::string> Board::last_lines(int rank) const {
  const Place& at = place(rank);
  const uint32_t said = at.lines_said.load(std::memory_order_acquire);
  std::vector<std::string> out;
  for (uint32_t i = said > kLines ? said - kLines : 0; i < said; ++i) {
    const char* text = at.lines[i % kLines];
    out.emplace_back(text, strnlen(text, kLineBytes));
  }
  return out;
}

void Board::end_for_other(int rank) {
  place(rank).ended_for_other.store(1, std::memory_order_relaxed);
}

bool Board::ended_for_other(int rank) const {
  return place(rank).ended_for_other.load(std::memory_order_relaxed) != 0;
}

void Board::say_why(int rank) {
  place(rank).said_why.store(1, std::memory_order_relaxed);
}

bool Board::said_why(int rank) const {
  return place(rank).said_why.load(std::memory_order_relaxed) != 0;
}

void Board::give_up(int rank) {
  place(rank).given_up.store(1, std::memory_order_relaxed);
}

bool Board::given_up(int rank) const {
  return place(rank).given_up.load(std::memory_order_relaxed) != 0;
}

void Board::set_run_folder(const std::string& path) {
  const size_t length = std::min(path.size(), sizeof(shared_->run_folder) - 1);
  std::memcpy(shared_->run_folder, path.data(), length);
  shared_->run_folder[length] = '\0';
}

std::string Board::run_folder() const {
  return {shared_->run_folder, strnlen(shared_->run_folder, sizeof(shared_->run_folder))};
}

void Board::clear() {
  for (int rank = 0; rank < ranks_; ++rank) {
    Place& at = place(rank);
    at.phase = 0;
    at.ended_for_other = 0;
    at.said_why = 0;
    at.given_up = 0;
    at.lines_said = 0;
  }
}

}  // namespace aerie::dist
