# A compiler that does not find libstdc++.so links the static library in silence. Together with the shared one that torch
# brings, that makes two C++ run times in one process, and a crash at exit. Such a compiler is given the shared library by name.
execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.so OUTPUT_VARIABLE libstdcxx
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT IS_ABSOLUTE "${libstdcxx}")
  find_library(AERIE_LIBSTDCXX NAMES libstdc++.so.6 PATHS /usr/lib/x86_64-linux-gnu /lib/x86_64-linux-gnu /usr/lib64)
  if(AERIE_LIBSTDCXX)
    message(STATUS "aerie: ${CMAKE_CXX_COMPILER} has no libstdc++.so of its own, using ${AERIE_LIBSTDCXX}")
    add_link_options($<$<LINK_LANGUAGE:CXX>:-nostdlib++>)
    set(CMAKE_CXX_STANDARD_LIBRARIES "${CMAKE_CXX_STANDARD_LIBRARIES} ${AERIE_LIBSTDCXX} -lm")
  endif()
endif()
