#include "aerie/dist/launch.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/dist/address.h"
#include "aerie/dist/board.h"
#include "aerie/dist/world.h"

extern char** environ;

namespace aerie::dist {

namespace {

constexpr int kExitDone = 0, kExitUsage = 2, kExitData = 3, kExitUnhealthy = 4;

struct Child {
  pid_t pid = 0;
  bool running = true;
  int status = 0;  // of waitpid()
};

bool ended_well(int status) {
  return WIFEXITED(status) &&
         (WEXITSTATUS(status) == kExitDone || WEXITSTATUS(status) == kExitUnhealthy);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    std::string name = signal_name(number);
    if (name == "another signal") name = str_cat("signal ", number);
    return str_cat("was ended by ", name,
                   number == SIGKILL ? " (by somebody, or for want of memory)" : "");
  }
  return str_cat("ended with exit code ", WEXITSTATUS(status));
}

// Whether that is the end that this signal, handed on, gives a rank that does not save: one that
// begins or ends, or that was asked twice.
bool ended_as_asked(int status, int number) {
  return number != 0 && ((WIFSIGNALED(status) && WTERMSIG(status) == number) ||
                         (WIFEXITED(status) && WEXITSTATUS(status) == 128 + number));
}

// Signals that ask the run to stop, and the end of a child, wait until they are asked for.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&set_);
    for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD}) sigaddset(&set_, number);
    struct sigaction hup = {};
    sigaction(SIGHUP, nullptr, &hup);
    if (hup.sa_handler != SIG_IGN) sigaddset(&set_, SIGHUP);  // ignored under nohup
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~HeldSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  // 0: none came in that time.
  int wait(double seconds) const {
    timespec limit = {};
    limit.tv_sec = static_cast<time_t>(seconds);
    limit.tv_nsec = static_cast<int64_t>((seconds - static_cast<double>(limit.tv_sec)) * 1e9);
    const int number = sigtimedwait(&set_, nullptr, &limit);
    return number > 0 ? number : 0;
  }
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t set_, before_;
};

class Ranks {
 public:
  Ranks(const LaunchOptions& options, Board& board) : options_(options), board_(board) {}

  Status start(const HeldSignals& signals, int restart) {
    Listener store;
    std::string master = options_.master_addr;
    uint16_t port = options_.master_port;
    if (options_.num_nodes == 1) {
      AERIE_ASSIGN_OR_RETURN(store, listen_anywhere("127.0.0.1"));
      fcntl(store.fd, F_SETFD, 0);
      master = "127.0.0.1";
      port = store.port;
    }
    children_.clear();
    for (int rank = 0; rank < options_.local_size; ++rank) {
      const std::vector<std::string> variables =
          variables_of(rank, restart, master, port, rank == 0 ? store.fd : -1);
      const Status started = start_one(variables, signals, rank == 0 ? -1 : store.fd);
      if (!started.ok()) {
        send(SIGKILL);
        while (running() > 0) reap(true);
        if (store.fd >= 0) close(store.fd);
        return started;
      }
    }
    if (store.fd >= 0) close(store.fd);
    return ok_status();
  }

  int running() const {
    return static_cast<int>(std::count_if(children_.begin(), children_.end(),
                                          [](const Child& child) { return child.running; }));
  }
  void send(int number) const {
    for (const Child& child : children_)
      if (child.running) kill(child.pid, number);
  }
  // Takes note of those that ended; the first bad end is kept.
  void reap(bool wait) {
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, wait ? 0 : WNOHANG)) > 0 || (pid < 0 && errno == EINTR)) {
      for (size_t i = 0; i < children_.size(); ++i) {
        Child& child = children_[i];
        if (child.pid != pid || !child.running) continue;
        child.running = false;
        child.status = status;
        if (ended_well(status)) continue;
        any_bad_ = true;
        // Those that end because another one did are not to blame, nor those that we ended: of one
        // that hung the others have told.
        if (board_.ended_for_other(static_cast<int>(i)))
          any_for_other_ = true;
        else if (!bad_ && !given_up_ && !board_.given_up(static_cast<int>(i)))
          bad_ = static_cast<int>(i);
      }
      if (wait && running() == 0) return;
    }
  }
  void give_up() {
    given_up_ = true;
    send(SIGKILL);
  }
  // A rank that hangs cannot end by itself, and the others need not wait for it any longer.
  void end_silent() const {
    for (size_t i = 0; i < children_.size(); ++i)
      if (children_[i].running && board_.given_up(static_cast<int>(i)))
        kill(children_[i].pid, SIGKILL);
  }
  bool any_bad() const { return any_bad_; }
  bool any_for_other() const { return any_for_other_; }
  const std::optional<int>& bad() const { return bad_; }
  int status_of(int rank) const { return children_[static_cast<size_t>(rank)].status; }
  pid_t pid_of(int rank) const { return children_[static_cast<size_t>(rank)].pid; }
  int worst_code() const {
    int code = 0;
    for (const Child& child : children_)
      code = std::max(code, WIFEXITED(child.status) ? WEXITSTATUS(child.status) : 1);
    return code;
  }

 private:
  std::vector<std::string> variables_of(int rank, int restart, const std::string& master,
                                        uint16_t port, int store_fd) const {
    std::vector<std::string> out;
    const auto set = [&](const char* name, const auto& value) {
      out.push_back(str_cat(name, "=", value));
    };
    set("RANK", options_.node * options_.local_size + rank);
    set("LOCAL_RANK", rank);
    set("WORLD_SIZE", options_.num_nodes * options_.local_size);
    set("LOCAL_WORLD_SIZE", options_.local_size);
    set("GROUP_RANK", options_.node);
    set("GROUP_WORLD_SIZE", options_.num_nodes);
    set("MASTER_ADDR", master);
    set("MASTER_PORT", port);
    set("AERIE_LAUNCHER", "self");
    set("AERIE_RESTART_COUNT", restart);
    set("AERIE_BOARD_FD", board_.fd());
    if (store_fd >= 0) set("AERIE_STORE_FD", store_fd);
    if (restart > 0 && !board_.run_folder().empty())
      set("AERIE_RESUME_FOLDER", board_.run_folder());
    // The cores are divided; without this every rank would start a thread on each of them.
    if (std::getenv("OMP_NUM_THREADS") == nullptr && options_.local_size > 1)
      set("OMP_NUM_THREADS", std::max(1, physical_core_count() / options_.local_size));
    // Connecting is tried again until it works; torch need not report every attempt.
    if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) set("TORCH_CPP_LOG_LEVEL", "ERROR");
    // Whatever else is there, of a launcher around this one too, less what stands above.
    for (char** at = environ; *at != nullptr; ++at) {
      const std::string_view entry(*at);
      const std::string_view name = entry.substr(0, entry.find('=') + 1);
      const bool replaced = std::any_of(
          out.begin(), out.end(), [&](const std::string& own) { return starts_with(own, name); });
      if (!replaced && !starts_with(entry, "TORCHELASTIC_")) out.emplace_back(entry);
    }
    return out;
  }

  Status start_one(const std::vector<std::string>& variables, const HeldSignals& signals,
                   int close_fd) {
    std::vector<char*> argv, envp;
    std::string program = options_.program;
    argv.push_back(program.data());
    std::vector<std::string> args = options_.args, env = variables;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    for (std::string& variable : env) envp.push_back(variable.data());
    envp.push_back(nullptr);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return errno_error("cannot start a process", errno);
    if (pid == 0) {
      // Only async-signal-safe calls here. A group of its own: signals of the terminal come once,
      // from the launcher; and no rank outlives it.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      signals.restore();
      if (close_fd >= 0) close(close_fd);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    children_.push_back({pid, true, 0});
    return ok_status();
  }

  const LaunchOptions& options_;
  Board& board_;
  std::vector<Child> children_;
  std::optional<int> bad_;
  bool any_bad_ = false, any_for_other_ = false, given_up_ = false;
};

std::string describe_end(const Ranks& ranks, const Board& board, int local_rank, int rank) {
  const std::vector<std::string> lines = board.last_lines(local_rank);
  std::string out = str_cat(
      "rank ", rank, " on ", host_name(), " (process ", ranks.pid_of(local_rank), ") ",
      how_it_ended(ranks.status_of(local_rank)), " in phase ", phase_name(board.phase(local_rank)));
  if (!lines.empty()) out += str_cat("\nlast lines of rank ", rank, ":");
  for (const std::string& line : lines) out += str_cat("\n  ", printable_lines(line));
  return out;
}

}  // namespace

Status check_ranks_on_cpu(int ranks) {
  constexpr int kEachCpu = 8, kAnyMachine = 32;
  const int most = std::max(kAnyMachine, kEachCpu * cpu_count());
  if (ranks <= most) return ok_status();
  return invalid_argument(str_cat(ranks, " ranks on the ", cpu_count(),
                                  " CPUs of this machine are too many, up to ", most,
                                  " are started"))
      .with_hint("each is a process with a model of its own; one for every few CPUs is fastest");
}

Result<int> launch_ranks(const LaunchOptions& options) {
  AERIE_ASSIGN_OR_RETURN(Board board, Board::create(options.local_size));
  const HeldSignals signals;
  for (int restart = 0;; ++restart) {
    board.clear();
    Ranks ranks(options, board);
    AERIE_RETURN_IF_ERROR(ranks.start(signals, restart));
    int signals_seen = 0, sent = 0;
    double kill_at = 0;
    while (ranks.running() > 0) {
      const int number = signals.wait(0.1);
      if (number != 0 && number != SIGCHLD) {
        // The first asks to save and leave, the second to leave at once, the third does not ask.
        sent = ++signals_seen > 2 ? SIGKILL : number;
        ranks.send(sent);
      }
      ranks.reap(false);
      ranks.end_silent();
      const double now = Clock::real().monotonic_s();
      // Once one has ended for the sake of another the rest had the same news.
      if (ranks.any_bad() && kill_at == 0) kill_at = now + options.grace_s;
      if (ranks.any_for_other()) kill_at = std::min(kill_at, now + std::min(1.0, options.grace_s));
      if (kill_at > 0 && now >= kill_at) ranks.give_up();
    }
    if (!ranks.any_bad()) return ranks.worst_code();

    // Without a cause here it was a rank that hangs or one of another machine: said by a rank.
    int code = 1;
    bool again = restart < options.max_restarts && signals_seen == 0;
    if (ranks.bad()) {
      const int local_rank = *ranks.bad();
      const int status = ranks.status_of(local_rank);
      if (WIFEXITED(status)) code = WEXITSTATUS(status);
      // Of a rank that has told why it ends nothing is left to say.
      if (ended_as_asked(status, sent))
        log_warn("launch", "the ranks were ended by ", signal_name(sent), " before they had saved");
      else if (!WIFEXITED(status) || !board.said_why(local_rank))
        log_error("launch", describe_end(ranks, board, local_rank,
                                         options.node * options.local_size + local_rank));
      // What is wrong with the command line or the data is so the next time too.
      again = again && code != kExitUsage && code != kExitData;
    }
    if (!again) return code;
    log_warn("launch", "starting the ranks again (", restart + 1, " of ", options.max_restarts,
             ") from the newest checkpoint");
  }
}

}  // namespace aerie::dist
