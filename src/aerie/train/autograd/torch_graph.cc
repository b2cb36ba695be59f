#include "aerie/train/autograd/torch_graph.h"

#include <dlfcn.h>

#include "aerie/device/gpu.h"

namespace aerie::train {
namespace {

struct Module {
  TorchGraphEntry* make = nullptr;
};

Result<Module> load_module() {
  const std::string path = device::module_path("libaerie_torch_graph.so");
  AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return unavailable(str_cat("no CUDA graphs of torch: ", reason ? reason : path))
        .with_hint("build where torch has CUDA (`scripts/setup.sh --cuda && make`)");
  }
  auto* entry = reinterpret_cast<TorchGraphEntry*>(dlsym(library, kTorchGraphEntry));
  if (entry == nullptr)
    return unavailable(str_cat(path, " belongs to another build of aerie"))
        .with_hint("rebuild with `make`");
  return Module{entry};
}

}  // namespace

Result<std::unique_ptr<TorchGraph>> make_torch_graph(at::Device device) {
  static const Result<Module> module = load_module();
  if (!module.ok()) return module.status();
  return std::unique_ptr<TorchGraph>(module->make(device.index()));
}

}  // namespace aerie::train
