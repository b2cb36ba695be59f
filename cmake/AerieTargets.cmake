# Helpers that keep a module's CMakeLists.txt at a few lines. A target names in DEPS (PRIVATE_DEPS for what its headers do not
# show) every folder of ours that it includes; all targets see all of src/, so scripts/check-includes compares the two.

add_library(aerie_options INTERFACE)
target_compile_options(aerie_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr>)
# No object names the folder of its checkout (messages of AERIE_CHECK, debug information). nvcc's own command line is part of
# the compiler cache's key, and its paths are relative already where there is a cache (CMakeLists.txt).
target_compile_options(aerie_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>)
# gcc frees memory of its own while it compiles, again and again from 128 MB on: a tenth of its time, for a gigabyte or two.
target_compile_options(aerie_options INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=2097152 --param=ggc-min-expand=1000>)
if(AERIE_WERROR)
  target_compile_options(aerie_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  if(CMAKE_CUDA_COMPILER_VERSION MATCHES "^13\\.0")
    target_compile_options(aerie_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>)
  endif()
endif()
if(AERIE_SANITIZE)
  target_compile_options(aerie_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${AERIE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(aerie_options INTERFACE -fsanitize=${AERIE_SANITIZE})
  # Kernels add offsets to arrays that may be absent and are not touched then; gcc has no such check.
  target_compile_options(aerie_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=pointer-overflow>)
  # For tests that ask: gcc and clang tell it in different ways.
  foreach(sanitizer address thread undefined)
    if("${AERIE_SANITIZE}" MATCHES "${sanitizer}")
      string(TOUPPER ${sanitizer} name)
      target_compile_definitions(aerie_options INTERFACE AERIE_SANITIZE_${name})
    endif()
  endforeach()
endif()
if(AERIE_NATIVE)
  target_compile_options(aerie_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
endif()
if(AERIE_BUILD_FUZZ)
  target_compile_options(aerie_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# aerie_optimize_sanitized(name...): libraries that do most of the work of their tests. Sanitizers' trees compile the others
# without optimisation, which takes half the time and hides nothing.
function(aerie_optimize_sanitized)
  foreach(name ${ARGN})
    if(AERIE_SANITIZE)
      target_compile_options(aerie_${name} PRIVATE -O1)
    endif()
  endforeach()
endfunction()

# aerie_optimize_little(name...): libraries that decide, wait, format and call others (torch, libraries with loops), whose own
# instructions are no part of a step's time. -O1 takes a quarter less time to compile than -O3 and computes the same bits.
function(aerie_optimize_little)
  foreach(name ${ARGN})
    if(TARGET aerie_${name})  # some need torch
      target_compile_options(aerie_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    endif()
  endforeach()
endfunction()

# What scripts/check-includes reads: a line for each target, "kind|name|folder|sources|deps|private deps", written to
# <build>/targets.txt at the end of the configuration.
function(aerie_record_target kind name sources deps private_deps)
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(JOIN "|" line ${kind} ${name} "${folder}" "${sources}" "${deps}" "${private_deps}")
  string(REPLACE ";" " " line "${line}")
  set_property(GLOBAL APPEND PROPERTY AERIE_TARGETS "${line}")
endfunction()
function(aerie_write_targets)
  get_property(lines GLOBAL PROPERTY AERIE_TARGETS)
  string(JOIN "\n" text ${lines})
  file(WRITE "${CMAKE_BINARY_DIR}/targets.txt" "${text}\n")
endfunction()

# Sources of a target are compiled several at a time: joined_<target>_<n>.cc includes up to AERIE_JOIN of them. Reading headers
# (torch's, json's, the standard library's) is most of what a file of ours costs, and is done once for all. Each source still has
# to compile alone: scripts/tidy and scripts/check-clang take them one by one, and AERIE_JOIN=0 builds that way. Names in unnamed
# namespaces are unique within a target; a source whose names cannot be has SKIP_UNITY_BUILD_INCLUSION. Sources with definitions
# or folders of their own stay alone; those with options of their own are joined with their like.
# Paths in the joined file are relative to the checkout, so that the compiler cache of one clone serves another.
function(aerie_join_sources target)
  get_target_property(sources ${target} SOURCES)
  set(groups)
  set(compiled)
  foreach(source ${sources})
    set(own)
    foreach(property COMPILE_DEFINITIONS COMPILE_FLAGS INCLUDE_DIRECTORIES SKIP_UNITY_BUILD_INCLUSION)
      get_source_file_property(value "${source}" ${property})
      if(value)
        set(own TRUE)
      endif()
    endforeach()
    if(own OR IS_ABSOLUTE "${source}" OR NOT source MATCHES "\\.cc$")
      list(APPEND compiled "${source}")
      continue()
    endif()
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    string(MD5 group "${options}")
    list(APPEND groups ${group})
    list(APPEND files_${group} "${source}")
    set(options_${group} "${options}")
  endforeach()
  list(REMOVE_DUPLICATES groups)
  set(number 0)
  foreach(group ${groups})
    list(LENGTH files_${group} count)
    math(EXPR batches "(${count} + ${AERIE_JOIN} - 1) / ${AERIE_JOIN}")
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    while(files_${group})
      list(SUBLIST files_${group} 0 ${size} batch)
      list(REMOVE_ITEM files_${group} ${batch})
      list(LENGTH batch count)
      if(count EQUAL 1)
        list(APPEND compiled ${batch})
        continue()
      endif()
      set(text "// Made by aerie_join_sources() of cmake/AerieTargets.cmake.\n")
      foreach(source ${batch})
        file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}/${source}")
        string(REGEX REPLACE "^src/" "" path "${path}")
        string(APPEND text "#include \"${path}\"\n")
      endforeach()
      set(joined "${CMAKE_CURRENT_BINARY_DIR}/joined_${target}_${number}.cc")
      math(EXPR number "${number} + 1")
      file(CONFIGURE OUTPUT "${joined}" CONTENT "${text}" @ONLY)
      if(options_${group})
        set_property(SOURCE "${joined}" APPEND PROPERTY COMPILE_OPTIONS "${options_${group}}")
      endif()
      if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # takes included sources for headers
        set_property(SOURCE "${joined}" APPEND PROPERTY COMPILE_OPTIONS -Wno-subobject-linkage)
      endif()
      list(APPEND compiled "${joined}")
    endwhile()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${compiled})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src")
  if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "^${PROJECT_SOURCE_DIR}/src/")
    target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  endif()
endfunction()
# At the end of the folder's CMakeLists.txt, when all properties are set.
function(aerie_join_later target)
  if(AERIE_JOIN)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL aerie_join_sources ${target})")
  endif()
endfunction()

# aerie_add_library(name SOURCES ... [DEPS ...] [PRIVATE_DEPS ...]): static library aerie_<name>, alias aerie::<name>.
function(aerie_add_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  aerie_record_target(library ${name} "${A_SOURCES}" "${A_DEPS}" "${A_PRIVATE_DEPS}")
  add_library(aerie_${name} STATIC ${A_SOURCES})
  add_library(aerie::${name} ALIAS aerie_${name})
  target_include_directories(aerie_${name} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(aerie_${name} PUBLIC ${A_DEPS} PRIVATE aerie_options ${A_PRIVATE_DEPS})
  aerie_join_later(aerie_${name})
endfunction()

# aerie_add_test(name SOURCES ... [DEPS ...] [LABELS unit|golden|slow|crash|gpu|tsan ...] [TIMEOUT s] [COST s]): one gtest
# executable, one ctest entry. COST: about how long it takes where that is more than ten seconds (a sanitizer's, where it is among
# them): the longest begin first, so that none runs alone at the end. Every test has aerie::base_testing: tests find their files by aerie/base/testing/paths.h.
# One thread for torch: tests run side by side, and a team of threads each would only get in each other's way. No AMX: see
# nn/cpu_runtime.cc, which does the same for what is not a bare layer.
# The label tsan marks what the thread-sanitizer run repeats; torch-linked tests never carry it.
# The label gpu adds a second entry, <name>_gpu, with the suites called *GpuTest: only they may skip (where there is no GPU);
# a skip anywhere else fails.
# The targets all_tests and tsan_tests build what tests need and nothing else.
add_custom_target(all_tests)
add_custom_target(tsan_tests)
function(aerie_add_test name)
  if(NOT AERIE_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "TIMEOUT;COST" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 900)  # for what hangs: with 20 processes on two cores a test of 40 s took more than 300
  endif()
  if(NOT A_COST)
    set(A_COST 5)
  endif()
  if(NOT A_LABELS)
    set(A_LABELS unit)
  endif()
  aerie_record_target(test ${name} "${A_SOURCES}" "${A_DEPS};aerie::base_testing" "")
  add_executable(${name} ${A_SOURCES})
  # Test code takes longer to compile than to run.
  set(test_files ${A_SOURCES})
  list(FILTER test_files INCLUDE REGEX "_test\\.cc$")
  set_property(SOURCE ${test_files} APPEND PROPERTY COMPILE_OPTIONS -O0)
  target_link_libraries(${name} PRIVATE ${A_DEPS} aerie::base_testing aerie_options deps::gtest_main)
  aerie_join_later(${name})
  set(labels ${A_LABELS})
  list(REMOVE_ITEM labels gpu)
  add_dependencies(all_tests ${name})
  if("tsan" IN_LIST labels)
    add_dependencies(tsan_tests ${name})
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_color=no --gtest_filter=-*GpuTest*)
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${A_TIMEOUT} COST ${A_COST}
                       FAIL_REGULAR_EXPRESSION "\\[  SKIPPED \\]" ENVIRONMENT "OMP_NUM_THREADS=1;ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16")
  if("gpu" IN_LIST A_LABELS)
    add_test(NAME ${name}_gpu COMMAND ${name} --gtest_color=no --gtest_filter=*GpuTest*)
    set_tests_properties(${name}_gpu PROPERTIES LABELS gpu TIMEOUT ${A_TIMEOUT})
  endif()
endfunction()

# aerie_add_fuzzer(name SOURCES ... [DEPS ...]): a libFuzzer target (clang), built by the fuzz preset only.
add_custom_target(fuzz_targets)
function(aerie_add_fuzzer name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  aerie_record_target(fuzzer ${name} "${A_SOURCES}" "${A_DEPS}" "")
  if(NOT AERIE_BUILD_FUZZ)
    return()
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_DEPS} aerie_options -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
endfunction()

# aerie_add_bench(name SOURCES ... [DEPS ...]): a Google Benchmark program, built by the bench preset. Trees with tests compile its
# sources and link nothing: what nobody compiles ends by not compiling.
function(aerie_add_bench name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  aerie_record_target(bench ${name} "${A_SOURCES}" "${A_DEPS}" "")
  if(NOT AERIE_BUILD_BENCH)
    find_path(AERIE_BENCHMARK_HEADERS benchmark/benchmark.h)
    if(AERIE_BENCHMARK_HEADERS AND AERIE_BUILD_TESTS AND NOT AERIE_SANITIZE)
      add_library(${name}_compiles OBJECT ${A_SOURCES})
      target_include_directories(${name}_compiles SYSTEM PRIVATE "${AERIE_BENCHMARK_HEADERS}")
      target_compile_options(${name}_compiles PRIVATE -O0)
      target_link_libraries(${name}_compiles PRIVATE ${A_DEPS} aerie_options)
    endif()
    return()
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_DEPS} aerie_options deps::benchmark)
endfunction()
