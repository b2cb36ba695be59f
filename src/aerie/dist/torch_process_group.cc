// ProcessGroup over c10d: a TCPStore to meet at, a Gloo group for values of the host, and a group
// of torch for tensors.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <unistd.h>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "aerie/base/log.h"
#include "aerie/base/log_tap.h"
#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/dist/address.h"
#include "aerie/dist/board.h"
#include "aerie/dist/join.h"
#include "aerie/dist/last_words.h"
#include "aerie/dist/nccl_backend.h"
#include "aerie/dist/torch_group.h"
#include "aerie/dist/watch.h"

namespace aerie::dist {

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;
using GlooPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

// Known to the ranks of a run and to nobody else who finds the port.
std::string random_token() {
  std::random_device random;  // a secret, nothing that results hang on
  return str_cat(random(), ".", random(), ".", random(), ".", random());
}

// Stands before the reason where rank 0 tells the others that there will be no group.
constexpr const char *kNotMet = "not met", *kWrongUse = "wrong use";

// Set by the thread of a collective when it is over.
struct Signal {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
};

// What torch logs of attempts to connect, call stacks among it, is not for users: the error is
// told.
class QuietTorch {
 public:
  QuietTorch() : before_(std::exchange(FLAGS_caffe2_log_level, c10::GLOG_FATAL)) {}
  ~QuietTorch() { FLAGS_caffe2_log_level = before_; }
  QuietTorch(const QuietTorch&) = delete;
  QuietTorch& operator=(const QuietTorch&) = delete;

 private:
  const int before_;
};

class TorchProcessGroup final : public ProcessGroup {
 public:
  TorchProcessGroup(World world, GroupOptions options)
      : world_(std::move(world)), options_(std::move(options)) {}
  ~TorchProcessGroup() override {
    leave();
    if (!broken_ && check().ok()) return;
    // A thread of Gloo may still wait for a rank that never answers, and joining it would too.
    if (values_.defined()) values_.release();
    for (Tensors& group : groups_) {
      if (group.gloo.defined()) group.gloo.release();
      if (group.torch.defined()) group.torch.release();
    }
    if (store_.defined()) store_.release();
  }

  Status join() {
    try {
      AERIE_RETURN_IF_ERROR(open_store());
      AERIE_RETURN_IF_ERROR(meet());
      AERIE_RETURN_IF_ERROR(start_watch());
      return make_groups();
    } catch (const std::exception& error) {
      return torch_error(error)
          .with_context(str_cat("rank ", world_.rank, " of ", world_.size,
                                " meeting the others at ", world_.master_addr, ":",
                                world_.master_port))
          .with_hint("every rank must reach that address; MASTER_ADDR and MASTER_PORT change it");
    }
  }

  const World& world() const override { return world_; }
  const std::string& host_of(int rank) const override { return hosts_.at(rank); }

  Status sum(std::span<double> values) override {
    return reduce(values, at::kDouble, c10d::ReduceOp::SUM);
  }
  Status sum(std::span<int64_t> values) override {
    return reduce(values, at::kLong, c10d::ReduceOp::SUM);
  }
  Status max(std::span<int64_t> values) override {
    return reduce(values, at::kLong, c10d::ReduceOp::MAX);
  }

  Status broadcast(std::string& bytes, int root) override {
    AERIE_CHECK(root >= 0 && root < world_.size, "root ", root, " of ", world_.size, " ranks");
    int64_t length = static_cast<int64_t>(bytes.size());
    AERIE_RETURN_IF_ERROR(hand_round(std::span<int64_t>(&length, 1), at::kLong, root));
    bytes.resize(static_cast<size_t>(length));
    if (bytes.empty()) return ok_status();
    return hand_round(std::span<char>(bytes), at::kByte, root);
  }

  Result<std::vector<std::string>> all_gather(const std::string& mine) override {
    std::vector<int64_t> lengths(world_.size, 0);
    lengths[world_.rank] = static_cast<int64_t>(mine.size());
    AERIE_RETURN_IF_ERROR(sum(std::span<int64_t>(lengths)));
    const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::vector<std::string> out(world_.size);
    if (longest == 0) return out;
    at::Tensor input = at::zeros({longest}, at::kByte);
    at::Tensor output = at::empty({world_.size * longest}, at::kByte);
    std::memcpy(input.data_ptr(), mine.data(), mine.size());
    AERIE_RETURN_IF_ERROR(
        run({input, output}, [&] { return values_->_allgather_base(output, input); }));
    for (int rank = 0; rank < world_.size; ++rank)
      out[rank].assign(output.data_ptr<uint8_t>() + rank * longest,
                       output.data_ptr<uint8_t>() + rank * longest + lengths[rank]);
    return out;
  }

  Status barrier() override {
    int64_t nothing = 0;
    return sum(std::span<int64_t>(&nothing, 1));
  }

  void set_phase(Phase phase) override {
    watch_->set_phase(phase);
    if (board_ != nullptr) board_->set_phase(board_->own_rank(), phase);
  }
  Phase phase() const override { return watch_->phase(); }
  void follow_device(const int32_t* phase) override { watch_->follow_device(phase); }
  Status check() const override {
    const std::optional<RankLoss> lost = loss();
    return lost ? lost->status : ok_status();
  }
  std::optional<RankLoss> loss() const override {
    return watch_ == nullptr ? std::nullopt : watch_->loss();
  }
  Status explain(Status error) const override {
    // The connection that broke under a collective and the one that is watched end together. What
    // all ranks find at once the first of them tells the others, who wait for it a little longer.
    const double seconds = 2.0 + 0.5 * std::min(world_.rank, 4);
    const std::optional<RankLoss> lost = watch_->wait_for_loss(seconds);
    return lost ? lost->status : error;
  }
  void fail(const Status& why) override {
    broken_ = true;
    watch_->fail(why);
  }
  void leave() override {
    if (watch_ == nullptr) return;
    shut_down_nccl();
    set_log_tap(board_tap());
    watch_->leave();
  }

  const c10::intrusive_ptr<c10d::ProcessGroup>& tensors() const { return groups_.front().torch; }

  Result<c10::intrusive_ptr<c10d::ProcessGroup>> add_group(const std::string& name) {
    try {
      // What an earlier one of that name has left in the store is not found by this one.
      AERIE_RETURN_IF_ERROR(make_tensors(str_cat(name, ".", groups_.size())));
      return groups_.back().torch;
    } catch (const std::exception& error) {
      return explain(torch_error(error)).with_context(str_cat("a process group for ", name));
    }
  }

 private:
  // What is under way comes to its end together with the other ranks; the watch still sees them.
  // Left to its destructor NCCL would be cut off. No graph holds a collective any more: NCCL waits
  // until the last one is gone.
  void shut_down_nccl() {
    if (options_.backend != "nccl" || broken_ || !check().ok()) return;
    if (std::exchange(shut_down_, true)) return;
    for (const Tensors& group : groups_) try {
        group.torch->getBackend(c10::DeviceType::CUDA)->shutdown();
      } catch (const std::exception& error) {
        log_warn("dist", "NCCL does not end as it should: ", torch_error(error).to_string());
      }
  }

  Status open_store() {
    c10d::TCPStoreOptions options;
    options.port = world_.master_port;
    options.isServer = world_.rank == 0 && !world_.agent_store;
    options.waitWorkers = false;  // meet() says who is missing
    options.timeout = milliseconds(options_.join_timeout_s);
    options.multiTenant = world_.listen_fd < 0;
    if (options.isServer && world_.listen_fd >= 0) options.masterListenFd = world_.listen_fd;
    AERIE_RETURN_IF_ERROR(wait_for_store(options.isServer));
    StorePtr store;
    const QuietTorch quiet;
    try {
      store = c10::make_intrusive<c10d::TCPStore>(world_.master_addr, options);
    } catch (const std::exception& error) {
      return store_failure(torch_error(error), options.isServer);
    }
    store_ = c10::make_intrusive<c10d::PrefixStore>(str_cat("aerie/", world_.restart_count), store);
    return ok_status();
  }

  // Until rank 0 is there, which may take long and must not look like a hang; torch would report
  // every attempt and wait twice as long.
  Status wait_for_store(bool is_server) const {
    constexpr double kQuietS = 10.0;
    const double quiet_s = std::min(kQuietS, options_.join_timeout_s);
    const auto wait = [&](double seconds) -> Status {
      if (is_server) return wait_for_name(world_.master_addr, seconds);
      AERIE_ASSIGN_OR_RETURN(const int fd,
                             connect_to(world_.master_addr, world_.master_port, seconds));
      close(fd);
      return ok_status();
    };
    Status reached = wait(quiet_s);
    if (!reached.ok() && quiet_s < options_.join_timeout_s) {
      log_warn("dist", "rank ", world_.rank, " waits for rank 0 at ", store_place(), ": ",
               reached.message());
      reached = wait(options_.join_timeout_s - quiet_s);
    }
    if (reached.ok()) return reached;
    return unavailable(str_cat("rank ", world_.rank, " of ", world_.size,
                               " did not reach rank 0 at ", store_place(), " within ",
                               options_.join_timeout_s, " s: ", reached.message()))
        .with_hint(
            "start rank 0 too; MASTER_ADDR and MASTER_PORT must name its host and a port that is "
            "open from here");
  }

  Status store_failure(const Status& error, bool is_server) const {
    if (error.message().find("EADDRINUSE") != std::string::npos)
      return unavailable(str_cat("rank 0 cannot meet the others at ", store_place(), ": port ",
                                 world_.master_port, " of ", host_name(),
                                 " is in use by another program"))
          .with_hint("set MASTER_PORT to a free port, the same one for all ranks");
    if (is_server)
      return unavailable(str_cat("rank 0 on ", host_name(), " cannot meet the others at ",
                                 store_place(), ": ", error.message()))
          .with_hint("MASTER_ADDR must be a name or an address of the host of rank 0");
    return unavailable(str_cat("rank ", world_.rank, " of ", world_.size,
                               " found no rank 0 of a training at ", store_place(), ": ",
                               error.message()))
        .with_hint("MASTER_ADDR and MASTER_PORT must name the host of rank 0 and its port");
  }

  std::string store_place() const { return str_cat(world_.master_addr, ":", world_.master_port); }

  static LogTap board_tap() {
    Board* board = Board::inherited();
    if (board == nullptr) return {};
    return [board](LogLevel, std::string_view line) { board->add_line(board->own_rank(), line); };
  }

  // Rank 0 waits for the others and tells all of them who is where, and how to reach its watch.
  Status meet() {
    const auto here = [](int rank) { return str_cat("here/", rank); };
    store_->set(here(world_.rank), bytes_of(str_cat(world_.size, " ", host_name())));
    std::string told;
    if (world_.rank == 0) {
      AERIE_ASSIGN_OR_RETURN(watch_address_, address_towards(world_.master_addr, world_.master_port,
                                                             world_.num_nodes > 1));
      AERIE_ASSIGN_OR_RETURN(listener_, listen_anywhere(watch_address_));
      told = str_cat(random_token(), "\n", watch_address_, "\n", listener_.port, "\n");
      std::vector<std::string> keys;
      for (int rank = 0; rank < world_.size; ++rank) keys.push_back(here(rank));
      try {
        store_->wait(keys, milliseconds(options_.join_timeout_s));
      } catch (const std::exception&) {
        return tell_missing(keys);
      }
      for (int rank = 0; rank < world_.size; ++rank) {
        const std::vector<uint8_t> got = store_->get(keys[rank]);
        const std::string text(got.begin(), got.end());
        const size_t space = std::min(text.find(' '), text.size() - 1);
        if (text.substr(0, space) != std::to_string(world_.size))
          return tell_all(invalid_argument(str_cat("rank ", rank, " was started as one of ",
                                                   printable(text.substr(0, space)),
                                                   " ranks, rank 0 as one of ", world_.size))
                              .with_hint("all ranks must be started with the same WORLD_SIZE"));
        told.append(text.substr(space + 1)).append("\n");
      }
      store_->set("hosts", bytes_of(told));
    } else {
      store_->wait({"hosts"}, milliseconds(options_.join_timeout_s + 5));
      const std::vector<uint8_t> got = store_->get("hosts");
      told.assign(got.begin(), got.end());
    }
    std::vector<std::string> lines = split(told, '\n');
    if (lines.size() >= 4 && lines[0] == kNotMet) {
      // Rank 0 says it.
      if (Board* board = Board::inherited(); board != nullptr)
        board->end_for_other(board->own_rank());
      return Status(lines[1] == kWrongUse ? StatusCode::kInvalidArgument : StatusCode::kUnavailable,
                    lines[2])
          .with_hint(lines[3]);
    }
    if (lines.size() < 4) return unavailable("the store holds something else than aerie put there");
    token_ = lines[0];
    watch_address_ = lines[1];
    AERIE_ASSIGN_OR_RETURN(watch_port_, parse_int<uint16_t>(lines[2], 1));
    hosts_.assign(lines.begin() + 3, lines.end() - 1);
    if (static_cast<int>(hosts_.size()) != world_.size)
      return unavailable("the store holds something else than aerie put there");
    return ok_status();
  }

  Status start_watch() {
    WatchOptions options;
    options.rank = world_.rank;
    options.size = world_.size;
    options.heartbeat_s = options_.heartbeat_s;
    options.timeout_s = options_.timeout_s;
    options.hosts = hosts_;
    options.token = token_;
    // For the launcher, should this process be killed.
    if (Board* board = Board::inherited(); board != nullptr)
      options.device_phase = [board](Phase phase) { board->set_phase(board->own_rank(), phase); };
    options.noticed = [world = world_](const RankLoss& loss) {
      const int local_rank = loss.rank - (world.rank - world.local_rank);
      Board* board = Board::inherited();
      if (board != nullptr && loss.kind == RankLoss::Kind::kSilent && local_rank >= 0 &&
          local_rank < world.local_size)
        board->give_up(local_rank);
    };
    if (options_.end_process)
      options.end_process = [world = world_](const RankLoss& loss) {
        report_loss(loss, world);
        write_elastic_error(loss.status);
        _exit(exit_code_for(loss.status.code()));
      };
    if (world_.rank == 0) {
      watch_ = Watch::serve(listener_, std::move(options));
    } else {
      AERIE_ASSIGN_OR_RETURN(watch_,
                             Watch::connect(watch_address_, watch_port_, std::move(options)));
    }
    board_ = Board::inherited();
    set_log_tap([watch = watch_, board = board_tap()](LogLevel level, std::string_view line) {
      watch->add_line(line);
      if (board) board(level, line);
    });
    return ok_status();
  }

  // The others, who wait for the hosts, end with the same reason.
  Status tell_all(Status why) {
    const char* kind = why.code() == StatusCode::kInvalidArgument ? kWrongUse : "";
    store_->set("hosts", bytes_of(str_cat(kNotMet, "\n", kind, "\n", why.message(), "\n",
                                          why.hint(), "\n")));
    usleep(500'000);  // the store goes with this process
    return why;
  }

  Status tell_missing(const std::vector<std::string>& keys) {
    std::vector<std::string> missing;
    for (int rank = 0; rank < world_.size; ++rank)
      if (!store_->check({keys[rank]})) missing.push_back(std::to_string(rank));
    return tell_all(
        unavailable(str_cat(missing.size(), " of ", world_.size, " ranks did not come within ",
                            options_.join_timeout_s, " s: ", aerie::join(missing, ", ")))
            .with_hint(str_cat("start all of them, and let them reach ", store_place())));
  }

  Result<std::shared_ptr<gloo::transport::Device>> gloo_device() const {
    const std::string interface = process_variable("GLOO_SOCKET_IFNAME");
    if (!interface.empty())
      return c10d::ProcessGroupGloo::createDeviceForInterface(
          interface.substr(0, interface.find(',')));
    AERIE_ASSIGN_OR_RETURN(
        const std::string address,
        address_towards(world_.master_addr, world_.master_port, world_.num_nodes > 1));
    return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  }

  Result<GlooPtr> make_gloo(const std::string& name) const {
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(options_.timeout_s));
    AERIE_ASSIGN_OR_RETURN(auto device, gloo_device());
    options->devices.push_back(std::move(device));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(name, store_), world_.rank, world_.size, options);
    gloo->setSequenceNumberForGroup();
    return gloo;
  }

  Status make_groups() {
    AERIE_ASSIGN_OR_RETURN(values_, make_gloo("values"));
    return make_tensors("tensors");
  }

  // A group of torch's for tensors, with a store of its own.
  Status make_tensors(const std::string& name) {
    Tensors made;
    AERIE_ASSIGN_OR_RETURN(made.gloo, make_gloo(name));
    made.torch = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::PrefixStore>(name + "/group", store_), world_.rank, world_.size);
    using Type = c10d::ProcessGroup::BackendType;
    made.torch->setBackend(c10::DeviceType::CPU, Type::GLOO, made.gloo);
    if (options_.backend == "nccl") {
      AERIE_ASSIGN_OR_RETURN(
          const c10::intrusive_ptr<c10d::Backend> nccl,
          make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>(name + "/nccl", store_),
                            {.rank = world_.rank,
                             .size = world_.size,
                             .gpu_index = options_.gpu_index,
                             .timeout_ms = milliseconds(options_.timeout_s).count()}));
      made.torch->setBackend(c10::DeviceType::CUDA, Type::NCCL, nccl);
      made.torch->setDefaultBackend(Type::NCCL);
    } else {
      made.torch->setBackend(c10::DeviceType::CUDA, Type::GLOO, made.gloo);
      made.torch->setDefaultBackend(Type::GLOO);
    }
    groups_.push_back(std::move(made));
    return ok_status();
  }

  // Queues a collective and waits for it or for bad news. `kept` lives until it is over, also when
  // nobody waits any more.
  template <typename Queue>
  Status run(std::vector<at::Tensor> kept, const Queue& queue) {
    AERIE_RETURN_IF_ERROR(check());
    try {
      const WorkPtr work = queue();
      const auto signal = std::make_shared<Signal>();
      work->getFuture()->addCallback([signal, kept = std::move(kept)](c10::ivalue::Future&) {
        const std::lock_guard lock(signal->mutex);
        signal->over = true;
        signal->changed.notify_all();
      });
      std::unique_lock lock(signal->mutex);
      while (!signal->changed.wait_for(lock, std::chrono::milliseconds(100),
                                       [&] { return signal->over; }))
        if (const Status lost = check(); !lost.ok()) {
          broken_ = true;
          return lost;
        }
      lock.unlock();
      work->wait();
      return ok_status();
    } catch (const std::exception& error) {
      broken_ = true;
      return explain(torch_error(error));
    }
  }

  template <typename T>
  Status reduce(std::span<T> values, at::ScalarType type, c10d::ReduceOp op) {
    if (values.empty()) return ok_status();
    std::vector<at::Tensor> tensors{at::empty({static_cast<int64_t>(values.size())}, type)};
    std::memcpy(tensors[0].data_ptr(), values.data(), values.size_bytes());
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    AERIE_RETURN_IF_ERROR(run(tensors, [&] { return values_->allreduce(tensors, options); }));
    std::memcpy(values.data(), tensors[0].data_ptr(), values.size_bytes());
    return ok_status();
  }

  template <typename T>
  Status hand_round(std::span<T> values, at::ScalarType type, int root) {
    std::vector<at::Tensor> tensors{at::empty({static_cast<int64_t>(values.size())}, type)};
    std::memcpy(tensors[0].data_ptr(), values.data(), values.size_bytes());
    c10d::BroadcastOptions options;
    options.rootRank = root;
    AERIE_RETURN_IF_ERROR(run(tensors, [&] { return values_->broadcast(tensors, options); }));
    std::memcpy(values.data(), tensors[0].data_ptr(), values.size_bytes());
    return ok_status();
  }

  const World world_;
  const GroupOptions options_;
  std::vector<std::string> hosts_;
  std::string token_, watch_address_;
  uint16_t watch_port_ = 0;
  Listener listener_;
  std::shared_ptr<Watch> watch_;
  Board* board_ = nullptr;
  std::atomic<bool> broken_{false};
  bool shut_down_ = false;  // NCCL
  StorePtr store_;
  GlooPtr values_;
  struct Tensors {
    GlooPtr gloo;
    c10::intrusive_ptr<c10d::ProcessGroup> torch;
  };
  std::vector<Tensors> groups_;  // torch_group() first
};

}  // namespace

Status torch_error(const std::exception& error) {
  std::string text = error.what();
  if (const auto* torch = dynamic_cast<const c10::Error*>(&error))
    text = torch->what_without_backtrace();
  return unavailable(text.substr(0, text.find('\n')));
}

c10::intrusive_ptr<c10d::ProcessGroup> torch_group(ProcessGroup& group) {
  auto* torch = dynamic_cast<TorchProcessGroup*>(&group);
  AERIE_CHECK(torch != nullptr, "a group that was not made by join_ranks()");
  return torch->tensors();
}

Result<c10::intrusive_ptr<c10d::ProcessGroup>> another_torch_group(ProcessGroup& group,
                                                                   const std::string& name) {
  auto* torch = dynamic_cast<TorchProcessGroup*>(&group);
  AERIE_CHECK(torch != nullptr, "a group that was not made by join_ranks()");
  return torch->add_group(name);
}

Result<std::shared_ptr<ProcessGroup>> join_ranks(const World& world, const GroupOptions& options) {
  if (options.backend != "gloo" && options.backend != "nccl")
    return invalid_argument(str_cat("unknown backend '", options.backend, "' of the process group"))
        .with_hint("gloo or nccl");
  if (options.backend == "nccl" && options.gpu_index < 0)
    return invalid_argument("NCCL needs a GPU; on the CPU the process group's backend is gloo");
  // Torch's warnings are about single attempts, with call stacks; what matters is told here.
  setenv("TORCH_CPP_LOG_LEVEL", "ERROR", /*overwrite=*/0);
  c10::initLogging();
  auto group = std::make_shared<TorchProcessGroup>(world, options);
  AERIE_RETURN_IF_ERROR(group->join());
  return std::shared_ptr<ProcessGroup>(group);
}

}  // namespace aerie::dist
