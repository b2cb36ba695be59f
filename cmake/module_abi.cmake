# Writes the header by which the executable and libaerie_cuda.so know each other (aerie/device/module_abi.h): a number derived
# from everything their interface is declared by, so that a module left over from an earlier build is refused, not called.
#
#   cmake -DROOT=src -DOUT=module_abi.h [-DDEPFILE=module_abi.d] -P cmake/module_abi.cmake
#
# The interface is what these headers declare, with all headers of ours they include. Changing any of them runs this again.
cmake_minimum_required(VERSION 3.25)
set(pending aerie/device/gpu.h aerie/kernels/kernel_table.h)
set(headers)
while(pending)
  list(POP_FRONT pending header)
  if(header IN_LIST headers)
    continue()
  endif()
  list(APPEND headers "${header}")
  file(STRINGS "${ROOT}/${header}" includes REGEX "^#include \"aerie/")
  foreach(include ${includes})
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" name "${include}")
    list(APPEND pending "${name}")
  endforeach()
endwhile()
list(SORT headers)

set(names)
set(depends)
foreach(header ${headers})
  file(SHA256 "${ROOT}/${header}" hash)
  string(APPEND names "${header} ${hash}\n")
  string(APPEND depends " ${ROOT}/${header}")
endforeach()
string(SHA256 hash "${names}")
string(SUBSTRING "${hash}" 0 8 abi)
set(text "// Made by cmake/module_abi.cmake; do not edit.
#pragma once

#include <cstdint>

namespace aerie::device {

// What GpuModule and the kernels' arguments look like in this build.
inline constexpr uint32_t kModuleAbi = 0x${abi};

}  // namespace aerie::device
")
# Left alone when nothing has changed, so that nothing is compiled again.
set(before)
if(EXISTS "${OUT}")
  file(READ "${OUT}" before)
endif()
if(NOT before STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
if(DEPFILE)
  file(WRITE "${DEPFILE}" "${OUT}:${depends}\n")
endif()
