#include "aerie/nn/torch_error.h"

#include <array>
#include <new>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace aerie::nn {
namespace {

// Whether a GPU has refused memory in this process.
bool device_has_refused_memory() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return false;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(c10::kCUDA));
  if (allocator == nullptr || !allocator->initialized()) return false;
  const c10::DeviceIndex count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  for (c10::DeviceIndex i = 0; i < count; ++i)
    if (allocator->getDeviceStats(i).num_ooms > 0) return true;
  return false;
}

// Torch tries one plan of cuDNN after another. Where memory is too short for them all, it says that
// there is none.
bool is_convolution_without_memory(std::string_view text) {
  return text.find("unable to find an engine to execute") != std::string_view::npos &&
         device_has_refused_memory();
}

}  // namespace

std::string torch_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "no host memory left";
  std::string text = error.what();
  if (const auto* c10_error = dynamic_cast<const c10::Error*>(&error))
    text = c10_error->what_without_backtrace();
  text = text.substr(0, text.find('\n'));
  if (is_convolution_without_memory(text)) return "out of memory in a convolution: " + text;
  // What follows describes the allocator.
  constexpr std::string_view kFree = " is free.";
  if (const size_t end = text.find(kFree); end != std::string::npos && says_out_of_memory(text))
    text.resize(end + kFree.size());
  return text;
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         says_out_of_memory(error.what()) || is_convolution_without_memory(error.what());
}

bool says_out_of_memory(std::string_view text) {
  constexpr std::array<std::string_view, 6> kSigns = {
      "out of memory", "not enough memory", "can't allocate memory",
      "ALLOC_FAILED",  "ALLOCATION_FAILED", "Cannot allocate memory"};
  for (const std::string_view sign : kSigns)
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

}  // namespace aerie::nn
