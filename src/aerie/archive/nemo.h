// .nemo archives: a tar (plain, or compressed in old files) of model_config.yaml and
// model_weights.ckpt, a torch file with one OrderedDict of tensors.
//
// Reading takes members in any order and with or without "./"; links, absolute names, "..",
// duplicates and unknown pickled objects are refused. Writing gives what NeMo itself writes and
// what torch.load(weights_only=True) accepts. The configuration passes through as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"
#include "aerie/base/env.h"

namespace aerie::archive {

struct NemoMember {
  std::string name;  // without "./"
  uint64_t size = 0;
};

struct NemoArchive {
  std::string config_yaml;
  TensorArchive weights;            // read on demand, from the file or from unpacked memory
  std::vector<NemoMember> members;  // all of them, in the archive's order
  bool compressed = false;
};

// A plain archive is read in place; a compressed one is unpacked into memory (its weights hardly
// compress, so that is about the size of the file).
Result<NemoArchive> read_nemo(Env& env, const std::string& path);
// From memory that outlives the result; `name` appears in errors.
Result<NemoArchive> read_nemo(std::span<const uint8_t> bytes, const std::string& name);

// Atomic. `config_yaml` is the resolved model node; tensors in the order of the state dict.
Status write_nemo(Env& env, const std::string& path, const std::string& config_yaml,
                  const std::vector<OutTensor>& tensors, const ProgressFn& progress = {});
Status write_nemo(const Sink& sink, const std::string& config_yaml,
                  const std::vector<OutTensor>& tensors, const ProgressFn& progress = {});

}  // namespace aerie::archive
