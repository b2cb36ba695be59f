#include "aerie/archive/pickle_globals.h"

#include <algorithm>

#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

struct Known {
  std::string_view module;
  std::string_view name;
  GlobalRole role;
};

constexpr Known kKnown[] = {
    {"collections", "OrderedDict", GlobalRole::kOrderedDict},
    {"collections", "defaultdict", GlobalRole::kDefaultDict},
    {"collections", "Counter", GlobalRole::kCounter},
    {"builtins", "set", GlobalRole::kSet},
    {"__builtin__", "set", GlobalRole::kSet},
    {"builtins", "frozenset", GlobalRole::kFrozenSet},
    {"__builtin__", "frozenset", GlobalRole::kFrozenSet},
    {"torch", "Size", GlobalRole::kSize},
    {"torch", "device", GlobalRole::kDevice},
    {"_codecs", "encode", GlobalRole::kCodecsEncode},
    {"torch._utils", "_rebuild_tensor", GlobalRole::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", GlobalRole::kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", GlobalRole::kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", GlobalRole::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", GlobalRole::kRebuildParameterWithState},
    {"torch._tensor", "_rebuild_from_type_v2", GlobalRole::kRebuildFromType},
    {"torch.storage", "UntypedStorage", GlobalRole::kUntypedStorage},
    {"torch", "UntypedStorage", GlobalRole::kUntypedStorage},
    {"torch.serialization", "_get_layout", GlobalRole::kLayout},
    {"numpy.core.multiarray", "scalar", GlobalRole::kNumpyScalar},
    {"numpy._core.multiarray", "scalar", GlobalRole::kNumpyScalar},
    {"numpy", "dtype", GlobalRole::kNumpyDtype},
};

// Modules whose functions reach the system or run code. A checkpoint has no use for them;
// "builtins" is judged by name below.
constexpr std::string_view kAttackModules[] = {
    "os",      "posix",   "nt",        "subprocess", "sys",       "shutil",    "socket",
    "runpy",   "ctypes",  "importlib", "pty",        "commands",  "code",      "codeop",
    "pdb",     "bdb",     "timeit",    "webbrowser", "popen2",    "requests",  "urllib",
    "http",    "ftplib",  "smtplib",   "marshal",    "telnetlib", "pip",       "pydoc",
    "pickle",  "_pickle", "shelve",    "imp",        "venv",      "zipimport", "cProfile",
    "doctest", "IPython", "ensurepip", "setuptools", "distutils",
};

// The rest of builtins (types, exceptions, getattr for nested classes and bound methods) is
// harmless as an opaque record.
constexpr std::string_view kAttackBuiltins[] = {
    "eval",  "exec",      "execfile", "compile", "open",       "file",
    "input", "raw_input", "setattr",  "delattr", "globals",    "locals",
    "exit",  "quit",      "apply",    "reload",  "__import__", "breakpoint",
};

}  // namespace

GlobalInfo classify_global(std::string_view module, std::string_view name) {
  for (const Known& known : kKnown)
    if (known.module == module && known.name == name) return {known.role};
  if (module == "torch" || module == "torch.storage" || module == "torch.cuda") {
    if (const auto dtype = dtype_from_torch_storage(name)) return {GlobalRole::kStorage, *dtype};
  }
  if (module == "torch") {
    if (const auto dtype = dtype_from_name(name)) return {GlobalRole::kDType, *dtype};
  }
  const std::string_view package = module.substr(0, module.find('.'));
  if (package == "builtins" || package == "__builtin__") {
    const bool attack = std::find(std::begin(kAttackBuiltins), std::end(kAttackBuiltins), name) !=
                        std::end(kAttackBuiltins);
    return {attack ? GlobalRole::kAttack : GlobalRole::kForeign};
  }
  for (const std::string_view attack : kAttackModules)
    if (package == attack) return {GlobalRole::kAttack};
  return {};
}

}  // namespace aerie::archive
