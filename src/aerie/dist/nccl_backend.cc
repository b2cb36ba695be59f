#include "aerie/dist/nccl_backend.h"

#include <cstdlib>
#include <dlfcn.h>
#include <unistd.h>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/dist/join.h"
#include "aerie/dist/torch_group.h"
#include "aerie/dist/world.h"

namespace aerie::dist {

namespace {

struct NcclModule {
  NcclModuleEntry* make_backend = nullptr;
};

Result<NcclModule> load_module() {
  const std::string path = device::module_path("libaerie_nccl.so");
  if (access(path.c_str(), R_OK) != 0)
    return unavailable(str_cat("this build reduces no gradients over NCCL (no ", path, ")"))
        .with_hint(
            "build where torch has CUDA and nccl.h of NCCL 2.28 is found (scripts/setup.sh --cuda "
            "fetches both), or train with process_group_backend: gloo");
  AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return unavailable(
               str_cat("the NCCL module does not load: ", reason ? reason : "unknown reason"))
        .with_hint("`scripts/setup.sh --cuda` fetches the libraries that it needs");
  }
  auto* make_backend = reinterpret_cast<NcclModuleEntry*>(dlsym(library, kNcclModuleEntry));
  if (make_backend == nullptr)
    return unavailable(str_cat(path, " belongs to another build of aerie"))
        .with_hint("rebuild with `make`");
  return NcclModule{make_backend};
}

}  // namespace

Status nccl_available() {
  return load_module().status();
}

void set_nccl_variables() {
  constexpr const char* kGraphRegister = "NCCL_GRAPH_REGISTER";
  const std::string given = process_variable(kGraphRegister);
  if (!given.empty() && given != "0")
    log_warn("dist", kGraphRegister, "=", given,
             " is not followed: ranks capture their steps at different times, with registered "
             "buffers they would not fit together");
  setenv(kGraphRegister, "0", /*overwrite=*/1);
}

Result<c10::intrusive_ptr<c10d::Backend>> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const NcclOptions& options) {
  set_nccl_variables();
  AERIE_ASSIGN_OR_RETURN(const NcclModule module, load_module());
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    module.make_backend(store, options, &backend);
  } catch (const std::exception& error) {
    return torch_error(error).with_context(str_cat("NCCL on GPU ", options.gpu_index));
  }
  return backend;
}

}  // namespace aerie::dist
