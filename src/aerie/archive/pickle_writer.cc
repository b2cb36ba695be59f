#include "aerie/archive/pickle_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <unordered_map>

#include "aerie/archive/pickle_globals.h"
#include "aerie/archive/pickle_ops.h"
#include "aerie/archive/text.h"
#include "aerie/archive/torch_file.h"
#include "aerie/archive/zip_writer.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

class Pickler {
 public:
  Pickler(const NodeTree& tree, const std::vector<OutTensor>& tensors)
      : tree_(tree), tensors_(tensors) {}

  Result<std::string> run(NodeId root) {
    op(kOpProto);
    out_.push_back(2);
    AERIE_RETURN_IF_ERROR(node(root, 0));
    op(kOpStop);
    return std::move(out_);
  }

 private:
  void op(PickleOp code) { out_.push_back(static_cast<char>(code)); }
  template <typename T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void integer(int64_t value);
  void real(double value) {
    op(kOpBinFloat);
    raw(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
  }
  void string(std::string_view text) {
    op(kOpBinUnicode);
    raw(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  // A string or global that comes again and again: written once, then referred to.
  void shared_string(const std::string& text) {
    if (!recall("s" + text)) {
      string(text);
      remember("s" + text);
    }
  }
  void global(const std::string& module, const std::string& name) {
    const std::string key = str_cat("g", module, "\n", name);
    if (recall(key)) return;
    op(kOpGlobal);
    out_ += str_cat(module, "\n", name, "\n");
    remember(key);
  }
  bool recall(const std::string& key) {
    const auto it = shared_.find(key);
    if (it == shared_.end()) return false;
    get(it->second);
    return true;
  }
  void remember(const std::string& key) { shared_.emplace(key, put()); }
  uint32_t put() {
    if (next_memo_ < 256) {
      op(kOpBinPut);
      raw(static_cast<uint8_t>(next_memo_));
    } else {
      op(kOpLongBinPut);
      raw(next_memo_);
    }
    return next_memo_++;
  }
  void get(uint32_t index) {
    if (index < 256) {
      op(kOpBinGet);
      raw(static_cast<uint8_t>(index));
    } else {
      op(kOpLongBinGet);
      raw(index);
    }
  }
  void dims(const std::vector<int64_t>& values) {
    op(kOpMark);
    for (const int64_t value : values) integer(value);
    op(kOpTuple);
  }
  void empty_ordered_dict() {
    global("collections", "OrderedDict");
    op(kOpEmptyTuple);
    op(kOpReduce);
  }

  Status node(NodeId id, uint32_t depth);
  Status container(NodeId id, uint32_t depth);
  Status tensor(uint32_t index);
  Status bytes(std::string_view value);

  const NodeTree& tree_;
  const std::vector<OutTensor>& tensors_;
  std::string out_;
  std::unordered_map<std::string, uint32_t> shared_;
  std::unordered_map<NodeId, uint32_t> written_;  // containers and tensors, by memo index
  uint32_t next_memo_ = 0;
};

void Pickler::integer(int64_t value) {
  if (value >= 0 && value < 256) {
    op(kOpBinInt1);
    raw(static_cast<uint8_t>(value));
  } else if (value >= 0 && value < 65536) {
    op(kOpBinInt2);
    raw(static_cast<uint16_t>(value));
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    op(kOpBinInt);
    raw(static_cast<int32_t>(value));
  } else {
    op(kOpLong1);
    raw(uint8_t{8});
    raw(value);
  }
}

Status Pickler::bytes(std::string_view value) {
  // Protocol 2 has no bytes; Python writes them as Latin-1 text and encodes that.
  std::string text;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text.push_back(c);
    } else {
      text.push_back(static_cast<char>(0xc0 | byte >> 6));
      text.push_back(static_cast<char>(0x80 | (byte & 0x3f)));
    }
  }
  global("_codecs", "encode");
  string(text);
  shared_string("latin1");
  op(kOpTuple2);
  op(kOpReduce);
  return ok_status();
}

Status Pickler::tensor(uint32_t index) {
  AERIE_CHECK(index < tensors_.size(), "no tensor ", index);
  const OutTensor& tensor = tensors_[index];
  const char* storage = dtype_torch_storage(tensor.dtype);
  global("torch._utils", storage != nullptr ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  op(kOpMark);
  op(kOpMark);
  shared_string("storage");
  if (storage != nullptr) {
    global("torch", storage);
  } else {
    global("torch.storage", "UntypedStorage");
  }
  string(str_cat(index));
  shared_string("cpu");
  integer(static_cast<int64_t>(storage != nullptr ? tensor.numel() : tensor.nbytes()));
  op(kOpTuple);
  op(kOpBinPersId);
  integer(0);
  dims(tensor.shape);
  std::vector<int64_t> strides(tensor.shape.size());
  int64_t stride = 1;
  for (size_t d = strides.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(tensor.shape[d], 1);
  }
  dims(strides);
  op(kOpNewFalse);
  empty_ordered_dict();
  if (storage == nullptr) global("torch", dtype_name(tensor.dtype));
  op(kOpTuple);
  op(kOpReduce);
  return ok_status();
}

Status Pickler::container(NodeId id, uint32_t depth) {
  const NodeKind kind = tree_.kind(id);
  const std::vector<NodeId>& items = tree_.items(id);
  if (kind == NodeKind::kTuple) {
    op(kOpMark);
    for (const NodeId item : items) AERIE_RETURN_IF_ERROR(node(item, depth + 1));
    op(kOpTuple);
    written_.emplace(id, put());
    return ok_status();
  }
  if (kind == NodeKind::kList) {
    op(kOpEmptyList);
  } else if (tree_.ordered(id)) {
    empty_ordered_dict();
  } else {
    op(kOpEmptyDict);
  }
  written_.emplace(id, put());
  if (items.empty()) return ok_status();
  op(kOpMark);
  for (const NodeId item : items) AERIE_RETURN_IF_ERROR(node(item, depth + 1));
  op(kind == NodeKind::kList ? kOpAppends : kOpSetItems);
  return ok_status();
}

Status Pickler::node(NodeId id, uint32_t depth) {
  if (depth > NodeTree::kMaxDepth)
    return unsupported("cannot write values that contain themselves");
  if (const auto it = written_.find(id); it != written_.end()) {
    get(it->second);
    return ok_status();
  }
  switch (tree_.kind(id)) {
    case NodeKind::kNone:
      op(kOpNone);
      return ok_status();
    case NodeKind::kBool:
      op(*tree_.as_bool(id) ? kOpNewTrue : kOpNewFalse);
      return ok_status();
    case NodeKind::kInt:
      integer(*tree_.as_int(id));
      return ok_status();
    case NodeKind::kFloat:
      real(*tree_.as_number(id));
      return ok_status();
    case NodeKind::kString:
      string(tree_.text(id));
      return ok_status();
    case NodeKind::kBytes:
      return bytes(tree_.text(id));
    case NodeKind::kBigInt: {
      const std::string_view digits = tree_.text(id);
      if (digits.size() > 255) break;
      op(kOpLong1);
      raw(static_cast<uint8_t>(digits.size()));
      out_.append(digits);
      return ok_status();
    }
    case NodeKind::kList:
    case NodeKind::kTuple:
    case NodeKind::kDict:
      return container(id, depth);
    case NodeKind::kTensor: {
      AERIE_RETURN_IF_ERROR(tensor(tree_.tensor(id)));
      written_.emplace(id, put());
      return ok_status();
    }
    case NodeKind::kGlobal: {
      const std::string full(tree_.text(id));
      const size_t dot = full.rfind('.');
      if (classify_global(full.substr(0, dot), full.substr(dot + 1)).role != GlobalRole::kDType)
        break;
      global(full.substr(0, dot), full.substr(dot + 1));
      return ok_status();
    }
    case NodeKind::kObject: {
      // A call of the one foreign class that add_dict_config() makes; no state, no items.
      if (tree_.object_class(id) != "omegaconf.dictconfig.DictConfig" ||
          tree_.object_state(id) != kNoNode || tree_.object_items(id) != kNoNode)
        break;
      global("omegaconf.dictconfig", "DictConfig");
      AERIE_RETURN_IF_ERROR(node(tree_.object_args(id), depth + 1));
      op(kOpReduce);
      written_.emplace(id, put());
      return ok_status();
    }
    case NodeKind::kSet:
    case NodeKind::kStorage:
      break;
  }
  return unsupported(str_cat("cannot write a ", node_kind_name(tree_.kind(id)),
                             tree_.is(id, NodeKind::kObject)
                                 ? str_cat(" of ", quoted(tree_.object_class(id)))
                                 : std::string()));
}

}  // namespace

Result<std::string> write_pickle(const NodeTree& tree, NodeId root,
                                 const std::vector<OutTensor>& tensors) {
  return Pickler(tree, tensors).run(root);
}

NodeId add_state_dict(NodeTree& tree, const std::vector<OutTensor>& tensors, uint32_t first_index) {
  const NodeId dict = tree.add_dict(/*ordered=*/true);
  for (const OutTensor& tensor : tensors) {
    const bool fits = tree.set(dict, tensor.name, tree.add_tensor(first_index++));
    AERIE_CHECK(fits, "a state dict is two levels deep");
  }
  return dict;
}

Result<TorchWriter> TorchWriter::make(const NodeTree& tree, NodeId root,
                                      std::vector<OutTensor> tensors, std::string prefix) {
  TorchWriter writer;
  for (const OutTensor& tensor : tensors) {
    auto numel = checked_numel(tensor.shape);
    if (!numel.ok()) return numel.status().with_context(str_cat("tensor ", quoted(tensor.name)));
  }
  AERIE_ASSIGN_OR_RETURN(writer.pickle_, write_pickle(tree, root, tensors));
  writer.tensors_ = std::move(tensors);
  writer.prefix_ = std::move(prefix);
  std::vector<ZipPlan> plan{{writer.prefix_ + "/data.pkl", writer.pickle_.size()},
                            {writer.prefix_ + "/byteorder", 6}};
  for (size_t i = 0; i < writer.tensors_.size(); ++i)
    plan.push_back({str_cat(writer.prefix_, "/data/", i), writer.tensors_[i].nbytes()});
  plan.push_back({writer.prefix_ + "/version", 2});
  writer.size_ = zip_size(plan);
  return writer;
}

Status TorchWriter::write(const Sink& sink, const ProgressFn& progress) const {
  ZipWriter zip(sink);
  AERIE_RETURN_IF_ERROR(zip.add(prefix_ + "/data.pkl", pickle_));
  AERIE_RETURN_IF_ERROR(zip.add(prefix_ + "/byteorder", "little"));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    AERIE_RETURN_IF_ERROR(zip.begin(str_cat(prefix_, "/data/", i), tensors_[i].nbytes()));
    const Status status =
        tensors_[i].emit([&](std::string_view bytes) { return zip.write(bytes); });
    if (!status.ok()) return status.with_context(str_cat("tensor ", quoted(tensors_[i].name)));
    AERIE_RETURN_IF_ERROR(zip.end());
    if (progress) progress(zip.bytes_written(), size_);
  }
  AERIE_RETURN_IF_ERROR(zip.add(prefix_ + "/version", "3\n"));
  AERIE_RETURN_IF_ERROR(zip.finish());
  AERIE_CHECK(zip.bytes_written() == size_, "zip of ", zip.bytes_written(), " bytes, planned ",
              size_);
  return ok_status();
}

}  // namespace aerie::archive
