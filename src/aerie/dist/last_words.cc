#include "aerie/dist/last_words.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/dist/board.h"

namespace aerie::dist {

void report_loss(const RankLoss& loss, const World& world) {
  if (Board* board = Board::inherited(); board != nullptr) board->end_for_other(board->own_rank());
  const int speaker = loss.rank == 0 ? 1 : 0;
  if (world.rank == speaker)
    log_error("dist", loss.status.to_string());
  else
    log_info("dist", loss.status.to_string());
  flush_logs();
}

void write_elastic_error(const Status& error) {
  const std::string path = process_variable("TORCHELASTIC_ERROR_FILE");
  if (path.empty()) return;
  const nlohmann::json content = {
      {"message",
       {{"message", error.to_string()},
        {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}}}}}};
  const auto text = content.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (const Status written = Env::real().write_file(path, text); !written.ok())
    log_warn("dist", "cannot tell torchrun the reason: ", written.to_string());
}

}  // namespace aerie::dist
