// What torch.save writes: a zip of data.pkl and one entry per storage. Read through the restricted
// unpickler; written so that torch.load(weights_only=True) accepts it. The format from before torch
// 1.6 (legacy_torch_file.h) is read as well.
//
// TorchScript archives are refused with a message that says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/archive/byte_source.h"
#include "aerie/archive/node.h"
#include "aerie/archive/pickle_reader.h"
#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

struct TorchFile {
  NodeTree tree;
  NodeId root = kNoNode;
  // Every tensor of the tree, named by the path to it ("optimizer_states.0.state.3.exp_avg"). A
  // tensor node's tensor() is an index into tensors.tensors().
  TensorArchive tensors;

  const TensorInfo* tensor(NodeId id) const;  // nullptr: the node is no tensor
};

Result<TorchFile> read_torch_file(SourcePtr source, const PickleOptions& options = {});

// The tensors of one dict from name to tensor, under its keys and in its order. Values that are not
// tensors are an error, except those of "_extra_state" keys, which are passed over.
Result<TensorArchive> state_dict_of(const TorchFile& file, NodeId dict);
// The dict that holds the weights: `state_dict` (Lightning), `model_state_dict`, `model`, or the
// file itself when it is nothing but a state dict. kNoNode: none of these.
NodeId find_state_dict(const TorchFile& file);
Result<TensorArchive> weights_of(const TorchFile& file);

// A writable torch file: a tree without foreign objects whose tensor nodes index `tensors`.
// `prefix` is the folder inside the zip; torch uses the file's stem.
class TorchWriter {
 public:
  static Result<TorchWriter> make(const NodeTree& tree, NodeId root, std::vector<OutTensor> tensors,
                                  std::string prefix = "archive");
  uint64_t size() const { return size_; }  // of the whole file
  Status write(const Sink& sink, const ProgressFn& progress = {}) const;

 private:
  TorchWriter() = default;
  std::string pickle_;
  std::vector<OutTensor> tensors_;
  std::string prefix_;
  uint64_t size_ = 0;
};

// An OrderedDict of these tensors, as state_dict() gives it; `tensors` are the tree's tensors.
NodeId add_state_dict(NodeTree& tree, const std::vector<OutTensor>& tensors,
                      uint32_t first_index = 0);

}  // namespace aerie::archive
