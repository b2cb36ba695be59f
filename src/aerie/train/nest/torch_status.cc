#include "aerie/train/nest/torch_status.h"

#include <array>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

namespace aerie::train {
namespace {

// The CPU allocator, cuBLAS and cuDNN report exhausted memory as ordinary errors.
bool says_out_of_memory(std::string_view text) {
  constexpr std::array<std::string_view, 5> kSigns = {"out of memory", "not enough memory",
                                                      "can't allocate memory", "ALLOC_FAILED",
                                                      "Cannot allocate memory"};
  for (const std::string_view sign : kSigns)
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

// Without the C++ backtrace and the registration notes behind the first line or two.
std::string first_lines(std::string_view text) {
  const size_t first = text.find('\n');
  return std::string(text.substr(0, first == std::string_view::npos ? text.size() : first));
}

Status no_memory(std::string_view text) {
  return out_of_memory(first_lines(text))
      .with_hint("use a smaller model.train_ds.batch_size or max_duration");
}

}  // namespace

Status torch_status(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return no_memory("no host memory left");
  std::string text = error.what();
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error))
    text = c10_error->what_without_backtrace();
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr || says_out_of_memory(text))
    return no_memory(text);
  return internal_error(std::move(text));
}

Status refine_torch_status(Status status) {
  if (status.code() != StatusCode::kInternal || !says_out_of_memory(status.message()))
    return status;
  Status out = no_memory(status.message());
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return out;
}

}  // namespace aerie::train
