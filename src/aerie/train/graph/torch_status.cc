#include "aerie/train/graph/torch_status.h"

#include <string>
#include <string_view>
#include <utility>

#include "aerie/nn/torch_error.h"

namespace aerie::train {
namespace {

Status no_memory(std::string message) {
  return out_of_memory(std::move(message))
      .with_hint("use a smaller model.train_ds.batch_size or max_duration");
}

}  // namespace

Status torch_status(const std::exception& error) {
  return nn::is_out_of_memory(error) ? no_memory(nn::torch_message(error))
                                     : internal_error(nn::torch_message(error));
}

Status refine_torch_status(Status status) {
  if (status.code() != StatusCode::kInternal || !nn::says_out_of_memory(status.message()))
    return status;
  Status out = no_memory(status.message().substr(0, status.message().find('\n')));
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return out;
}

}  // namespace aerie::train
