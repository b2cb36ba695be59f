#include "aerie/train/graph/torch_status.h"

#include <string>
#include <string_view>
#include <utility>

#include "aerie/base/strings.h"
#include "aerie/nn/torch_error.h"

namespace aerie::train {

Status torch_status(const std::exception& error) {
  return nn::is_out_of_memory(error) ? out_of_memory(nn::torch_message(error))
                                     : internal_error(nn::torch_message(error));
}

Status refine_torch_status(Status status) {
  if (status.code() != StatusCode::kInternal || !nn::says_out_of_memory(status.message()))
    return status;
  Status out = out_of_memory(status.message().substr(0, status.message().find('\n')));
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return out;
}

Status roll_back_after(Status failure, const std::function<void()>& roll_back) {
  try {
    roll_back();
    return failure;
  } catch (const std::exception& error) {
    Status out =
        internal_error(str_cat(failure.message(),
                               "; the step could not be undone: ", nn::torch_message(error)))
            .with_hint("start the run again: it goes on from its newest checkpoint");
    for (const std::string& where : failure.context()) out = std::move(out).with_context(where);
    return out;
  }
}

}  // namespace aerie::train
