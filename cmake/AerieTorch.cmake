# LibTorch as hand-written imported targets. Its own CMake package does not configure with CMake 3.25, adds global flags and
# needs a CUDA toolkit; these targets need none of that.
#
#   aerie::torch       torch_cpu + c10: all that the executable links
#   aerie::torch_cuda  torch_cuda + c10_cuda: only for modules that are loaded when a GPU is there
#
# AERIE_TORCH names the folder that holds include/ and lib/ (site-packages/torch). scripts/setup.sh finds or fetches it and
# writes its path to <cache>/torch.path; a build without the Makefile can pass -DAERIE_TORCH=...
set(AERIE_TORCH "$ENV{AERIE_TORCH}" CACHE PATH "Folder of torch 2.11.0 (the one with include/ and lib/)")
if(NOT AERIE_TORCH)
  execute_process(COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/scripts/setup.sh" --print-torch
                  OUTPUT_VARIABLE torch_found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE rc)
  if(rc EQUAL 0 AND torch_found)
    set(AERIE_TORCH "${torch_found}" CACHE PATH "Folder of torch 2.11.0 (the one with include/ and lib/)" FORCE)
  endif()
endif()
if(NOT EXISTS "${AERIE_TORCH}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "aerie: no LibTorch at AERIE_TORCH='${AERIE_TORCH}'. Run scripts/setup.sh, or name the folder of an "
                      "installed torch 2.11.0.")
endif()
# A source build carries TORCH_VERSION in headers/version.h; a different minor version has another ABI.
file(STRINGS "${AERIE_TORCH}/include/torch/headeronly/version.h" torch_version_lines
     REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" torch_version "${torch_version_lines}")
string(REPLACE ";" "." AERIE_TORCH_VERSION "${torch_version}")
if(NOT AERIE_TORCH_VERSION MATCHES "^2\\.11\\.")
  message(FATAL_ERROR "aerie: torch ${AERIE_TORCH_VERSION} at ${AERIE_TORCH}; 2.11.x is needed.")
endif()

set(torch_includes "${AERIE_TORCH}/include" "${AERIE_TORCH}/include/torch/csrc/api/include")
foreach(lib torch_cpu c10 torch_cuda c10_cuda)
  if(EXISTS "${AERIE_TORCH}/lib/lib${lib}.so")
    add_library(torch::${lib} SHARED IMPORTED GLOBAL)
    set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION "${AERIE_TORCH}/lib/lib${lib}.so"
                          INTERFACE_INCLUDE_DIRECTORIES "${torch_includes}")
  endif()
endforeach()
add_library(aerie_torch INTERFACE)
target_link_libraries(aerie_torch INTERFACE torch::torch_cpu torch::c10 Threads::Threads)
# ATen's headers then do not read all of its 2,000 operators, which a third of a file's time was; sources include those they call.
target_compile_definitions(aerie_torch INTERFACE AT_PER_OPERATOR_HEADERS)
add_library(aerie::torch ALIAS aerie_torch)

# aerie_torch_parallel(target files...): at::parallel_for is a plain loop in files compiled without OpenMP; these get it. Only
# GNU's, whose run time is the one torch brings: two of them in a process would not know of each other's threads.
function(aerie_torch_parallel target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-fopenmp")
    target_link_libraries(${target} PUBLIC gomp)
  endif()
endfunction()

# Where libcudart and libcupti live: beside the wheel (nvidia/cu13/lib), found through the wheel's own RPATH at run time; the
# linker needs to be told.
get_filename_component(torch_site "${AERIE_TORCH}" DIRECTORY)
set(AERIE_NVIDIA_LIBS)
foreach(dir cu13 cudnn nccl nvshmem cusparselt)
  if(IS_DIRECTORY "${torch_site}/nvidia/${dir}/lib")
    list(APPEND AERIE_NVIDIA_LIBS "${torch_site}/nvidia/${dir}/lib")
  endif()
endforeach()
foreach(dir ${AERIE_NVIDIA_LIBS} "${AERIE_TORCH}/lib")
  target_link_options(aerie_torch INTERFACE "-Wl,-rpath-link,${dir}")
endforeach()
target_link_options(aerie_torch INTERFACE "-Wl,--allow-shlib-undefined")

if(TARGET torch::torch_cuda)
  add_library(aerie_torch_cuda INTERFACE)
  # --no-as-needed: the CUDA backend registers itself by being loaded, no symbol of it need be used.
  target_link_libraries(aerie_torch_cuda INTERFACE aerie_torch torch::c10_cuda -Wl,--no-as-needed torch::torch_cuda
                        -Wl,--as-needed)
  add_library(aerie::torch_cuda ALIAS aerie_torch_cuda)
endif()
