#include "aerie/dist/last_words.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/dist/board.h"

namespace aerie::dist {

void report_failure(const std::string& why) {
  log_error("train", why);
  flush_logs();
  if (Board* board = Board::inherited(); board != nullptr) board->say_why(board->own_rank());
}

void report_loss(const RankLoss& loss, const World& world) {
  if (Board* board = Board::inherited(); board != nullptr) board->end_for_other(board->own_rank());
  // The first rank of each machine, or the next one when it is the one that is lost.
  const int first = world.rank - world.local_rank;
  const int speaker = loss.rank == first ? first + 1 : first;
  // On a console that all of them share, one that failed has said so itself, and of one that died
  // the launcher tells.
  const bool told = world.launcher == Launcher::kSelf && loss.kind != RankLoss::Kind::kSilent &&
                    loss.rank >= first && loss.rank < first + world.local_size;
  if (world.rank == speaker && !told)
    log_error("dist", loss.status.to_string());
  else
    log_info("dist", loss.status.to_string());
  flush_logs();
}

void write_elastic_error(const Status& error) {
  const std::string path = process_variable("TORCHELASTIC_ERROR_FILE");
  if (path.empty()) return;
  // Without a call stack torchrun shows the message itself.
  const nlohmann::json content = {
      {"message",
       {{"message", error.to_string()},
        {"extraInfo", {{"timestamp", std::to_string(std::time(nullptr))}}}}}};
  const auto text = content.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (const Status written = Env::real().write_file(path, text); !written.ok())
    log_warn("dist", "cannot tell torchrun the reason: ", written.to_string());
}

}  // namespace aerie::dist
