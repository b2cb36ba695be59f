// The state of a training engine on its way to a checkpoint and back: what the store writes and
// reads, without knowing what it belongs to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/dtype.h"
#include "aerie/base/status.h"

namespace aerie::train {

// A named tensor in host memory, owned by the snapshot.
struct SnapshotTensor {
  std::string
      file;  // "model", "optimizer", "ema": which safetensors file of a checkpoint it belongs to
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  size_t bytes = 0;
};

// State of an engine at one moment. snapshot() only starts the copy; another thread may wait() and
// read while training goes on.
class StateSnapshot {
 public:
  virtual ~StateSnapshot() = default;
  virtual Status wait() = 0;
  virtual const std::vector<SnapshotTensor>& tensors() const = 0;  // after wait()
  virtual const std::string& scalars_json()
      const = 0;  // optimizer step counts, scaler; after wait()
};

// The same state on its way back, read from a checkpoint.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Names of the tensors in one file of the checkpoint; empty when there is no such file.
  virtual std::vector<std::string> names(const std::string& file) const = 0;
  // Copies one tensor into `out` after checking dtype and shape.
  virtual Status read(const std::string& file, const std::string& name, Dtype dtype,
                      const std::vector<int64_t>& shape, void* out) const = 0;
  virtual const std::string& scalars_json() const = 0;
};

}  // namespace aerie::train
