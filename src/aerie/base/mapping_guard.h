// What happens when a mapped file is cut short by somebody else: the kernel sends SIGBUS to whoever
// touches the lost pages. With the guard the process says which file it was and leaves with exit
// code 3 (the data is wrong) instead of dying without a word.
#pragma once

#include <cstddef>
#include <string>

namespace aerie {

// From main, once. A SIGBUS for any other reason is left to whoever handled it before.
void install_mapping_guard();

// Called by Env::real() around every mapping.
void add_guarded_mapping(const void* data, size_t size, const std::string& path);
void remove_guarded_mapping(const void* data);

}  // namespace aerie
