#include "aerie/nn/torch_error.h"

#include <array>
#include <new>

#include <c10/util/Exception.h>

namespace aerie::nn {

std::string torch_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "no host memory left";
  std::string text = error.what();
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error))
    text = c10_error->what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  // What follows describes the allocator.
  constexpr std::string_view kFree = " is free.";
  if (const size_t end = text.find(kFree); end != std::string::npos && says_out_of_memory(text))
    text.resize(end + kFree.size());
  return text;
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         says_out_of_memory(error.what());
}

bool says_out_of_memory(std::string_view text) {
  constexpr std::array<std::string_view, 5> kSigns = {"out of memory", "not enough memory",
                                                      "can't allocate memory", "ALLOC_FAILED",
                                                      "Cannot allocate memory"};
  for (const std::string_view sign : kSigns)
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

}  // namespace aerie::nn
