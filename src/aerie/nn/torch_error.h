// What torch's exceptions say, for messages to users.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace aerie::nn {

// Its first line: without the C++ backtrace and the registration notes behind it.
std::string torch_message(const std::exception& error);

// Whether memory is exhausted, of the host or a device. The CPU allocator, cuBLAS and cuDNN report
// that as ordinary errors; a convolution even without a word of memory.
bool is_out_of_memory(const std::exception& error);
bool says_out_of_memory(std::string_view text);

}  // namespace aerie::nn
