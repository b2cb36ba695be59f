// Opens any of the formats of this folder by what the file holds, not by its name; for tools that
// take whatever the user has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/nemo.h"
#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/torch_file.h"

namespace aerie::archive {

enum class FileKind {
  kNemo,
  kLightning,  // a torch file with a state_dict and Lightning's counters
  kTorch,      // any other torch file
  kSafetensors,
  kCheckpoint,  // a folder written by `aerie train`; its model.safetensors is what is opened
  kNpy,
  kNpz,
};

const char* file_kind_name(FileKind kind);  // "NeMo archive", ...

struct AnyArchive {
  FileKind kind = FileKind::kTorch;
  uint64_t file_bytes = 0;
  // The named tensors a user means: the state dict where there is one, else all tensors.
  TensorArchive tensors;
  std::optional<NemoArchive> nemo;
  std::optional<LightningCheckpoint> lightning;
  std::optional<TorchFile> torch;  // kTorch only; lightning holds its own
};

// `path` is a file, or the folder of a native checkpoint.
Result<AnyArchive> open_any(Env& env, const std::string& path);

// Just the weights of any of them.
Result<TensorArchive> open_weights(Env& env, const std::string& path);

// The tensors that init_from_nemo_model would load: names that contain any of `include` (empty: all
// do) and none of `exclude`.
Result<TensorArchive> select_tensors(const TensorArchive& archive,
                                     const std::vector<std::string>& include,
                                     const std::vector<std::string>& exclude);

}  // namespace aerie::archive
