// What each rank of a machine is doing, in memory that it shares with the launcher: phase and last
// log lines, readable also after a rank was killed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/phase.h"

namespace aerie::dist {

// Threads: set_phase() from any; add_line() from one at a time.
class Board final {
 public:
  // Of the launcher: for `ranks` processes that inherit fd().
  static Result<Board> create(int ranks);
  // Of a rank: what the launcher left it (AERIE_BOARD_FD, LOCAL_RANK); null: there is none.
  static Board* inherited();

  Board(Board&& other) noexcept;
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int fd() const { return fd_; }
  void set_phase(int rank, Phase phase);
  Phase phase(int rank) const;
  void add_line(int rank, std::string_view line);
  std::vector<std::string> last_lines(int rank) const;  // oldest first
  // The rank ends because another one did.
  void end_for_other(int rank);
  bool ended_for_other(int rank) const;
  // The rank has said on its console why it ends.
  void say_why(int rank);
  bool said_why(int rank) const;
  // Other ranks have heard nothing of it for too long: it hangs.
  void give_up(int rank);
  bool given_up(int rank) const;
  // The folder of the run, so that a restart goes on in it.
  void set_run_folder(const std::string& path);
  std::string run_folder() const;
  void clear();  // before a restart; keeps the run folder

  int own_rank() const { return own_rank_; }  // of inherited()

 private:
  struct Shared;
  struct Place;
  Board(int fd, int ranks, Shared* shared) : fd_(fd), ranks_(ranks), shared_(shared) {}
  static Result<Board> map(int fd, int ranks);
  Place& place(int rank) const;

  int fd_ = -1;
  int ranks_ = 0;
  int own_rank_ = 0;
  Shared* shared_ = nullptr;
};

}  // namespace aerie::dist
