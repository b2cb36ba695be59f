// `aerie inspect FILE`: what a checkpoint, archive or array file holds.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/text.h"
#include "aerie/base/hash.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "checkpoint_path.h"
#include "command.h"
#include "json_output.h"

namespace aerie::tools {
namespace {

using archive::AnyArchive;
using archive::kNoNode;
using archive::NodeId;
using archive::NodeKind;
using archive::NodeTree;
using archive::printable;
using archive::TensorInfo;
using Json = nlohmann::ordered_json;

constexpr const char* kInspectHelp =
    "usage: aerie inspect FILE [--json] [--no-checksums]\n\n"
    "Shows what a .nemo, .ckpt, .pt, .safetensors, .npy or .npz file, the folder of a checkpoint "
    "of aerie train, or the newest\n"
    "checkpoint in the folder of a run holds: its tensors as a tree with types, shapes, sizes and "
    "checksums, the model's configuration, and for "
    "Lightning checkpoints the\n"
    "counters, optimizer and schedules. Nothing in the file is executed. The format is told by the "
    "content, not by the name.\n\n"
    "  --json          the same as one JSON object\n"
    "  --no-checksums  do not read the tensors; quick for large files\n\n"
    "example: aerie inspect checkpoints/SSL-NEST-FastConformer.nemo\n"
    "         aerie inspect nemo_experiments/SSL-NEST-FastConformer\n\n"
    "A checksum is the xxHash64 of the tensor's row-major bytes, so equal weights have equal "
    "checksums in every format.\n"
    "exit code: 0 fine, 2 there is no such file, 3 it is damaged or of an unknown kind\n";

struct InspectOptions {
  std::string file;
  bool json = false;
  bool checksums = true;
};

struct Checksums {
  std::vector<std::string> of_tensor;  // empty without --checksums
  std::string of_all;
};

Result<Checksums> compute_checksums(const AnyArchive& file) {
  Checksums out;
  XxHash64 all;
  ProgressOptions options;
  options.label = "reading";
  options.total = file.tensors.total_bytes();
  options.unit = "bytes";
  Progress progress(std::move(options));
  for (const TensorInfo& info : file.tensors.tensors()) {
    AERIE_ASSIGN_OR_RETURN(const std::string bytes, file.tensors.read(info));
    const uint64_t hash = xxhash64(bytes);
    out.of_tensor.push_back(hex64(hash));
    // Over names, types, shapes and values: equal only for equal state dicts.
    all.update(str_cat(info.name, " ", dtype_name(info.dtype), " ", archive::shape_text(info.shape),
                       " ", hex64(hash), "\n"));
    progress.add(bytes.size());
  }
  out.of_all = hex64(all.digest());
  return out;
}

// Tensors by the parts of their names: encoder -> layers -> 0 -> ...
struct Branch {
  std::string name;
  std::vector<Branch> children;                   // in order of appearance
  std::unordered_map<std::string, size_t> index;  // into children, by name
  std::vector<size_t> leaves;                     // tensors that end here
  size_t count = 0;
  uint64_t bytes = 0;

  Branch& child(const std::string& part) {
    const auto [it, fresh] = index.emplace(part, children.size());
    if (fresh) children.emplace_back().name = part;
    return children[it->second];
  }
};

Branch grow(const std::vector<TensorInfo>& tensors) {
  // Deeper than this a name is shown in one piece; recursion below is bounded by it.
  constexpr size_t kMaxParts = 32;
  Branch root;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::string> parts = split(tensors[i].name, '.');
    Branch* at = &root;
    const uint64_t bytes = tensors[i].nbytes();
    const auto count = [&] {
      ++at->count;
      at->bytes += bytes;
    };
    count();
    for (size_t p = 0; p + 1 < std::min(parts.size(), kMaxParts); ++p) {
      at = &at->child(parts[p]);
      count();
    }
    at->leaves.push_back(i);
  }
  return root;
}

// The model's configuration as YAML, where the file carries one that can be understood.
std::string config_of(const AnyArchive& file) {
  if (file.nemo) return file.nemo->config_yaml;
  if (!file.lightning) return {};
  const auto config = archive::model_config_of(*file.lightning);
  if (!config.ok()) return {};
  const auto yaml = config::emit_yaml(*config);
  return yaml.ok() ? *yaml : std::string();
}

class TextReport {
 public:
  TextReport(const AnyArchive& file, const Checksums& checksums)
      : file_(file), checksums_(checksums) {}

  void print(const InspectOptions& options) {
    print_summary(options);
    if (const std::string config = config_of(file_); !config.empty()) print_config(config);
    if (file_.lightning) {
      weights_ = archive::find_state_dict(file_.lightning->file);
      print_checkpoint(*file_.lightning);
    }
    if (file_.torch && archive::find_state_dict(*file_.torch) != file_.torch->root) {
      weights_ = archive::find_state_dict(*file_.torch);
      std::printf("\ncontents\n");
      print_node(file_.torch->tree, file_.torch->root, "", 1);
    }
    for (const auto& [key, value] : file_.tensors.text_metadata()) print_metadata(key, value);
    std::printf("\ntensors\n");
    print_branch(grow(file_.tensors.tensors()), "", 1);
  }

 private:
  void print_summary(const InspectOptions& options) {
    const std::vector<TensorInfo>& tensors = file_.tensors.tensors();
    std::printf("%s: %s, %s\n", printable(options.file).c_str(),
                archive::file_kind_name(file_.kind),
                archive::human_bytes(file_.file_bytes).c_str());
    if (file_.nemo) {
      std::printf("  members   %s%s\n", members().c_str(),
                  file_.nemo->compressed ? " (compressed)" : "");
    }
    std::map<std::string, size_t> types;
    uint64_t elements = 0;
    for (const TensorInfo& info : tensors) {
      ++types[dtype_name(info.dtype)];
      elements += info.numel();
    }
    std::string by_type;
    for (const auto& [type, count] : types)
      by_type += str_cat(by_type.empty() ? "" : ", ", count, " ", type);
    std::printf("  tensors   %s (%s), %s elements, %s\n", group_digits(tensors.size()).c_str(),
                by_type.empty() ? "none" : by_type.c_str(), group_digits(elements).c_str(),
                archive::human_bytes(file_.tensors.total_bytes()).c_str());
    if (!checksums_.of_all.empty()) std::printf("  checksum  %s\n", checksums_.of_all.c_str());
  }

  std::string members() const {
    std::string out;
    for (size_t i = 0; i < file_.nemo->members.size(); ++i) {
      if (i == 20) return str_cat(out, ", ", file_.nemo->members.size() - i, " more");
      const archive::NemoMember& member = file_.nemo->members[i];
      out += str_cat(i == 0 ? "" : ", ", printable(member.name), " ",
                     archive::human_bytes(member.size));
    }
    return out;
  }

  static void print_config(const std::string& yaml) {
    std::printf("\nconfig\n");
    for (const std::string& line : split(trim(yaml), '\n'))
      std::printf("  %s\n", printable(line).c_str());
  }

  static void print_metadata(const std::string& key, const std::string& value) {
    if (value.find('\n') == std::string::npos) {
      std::printf("\nmetadata %s: %s\n", printable(key).c_str(), printable(value).c_str());
      return;
    }
    std::printf("\nmetadata %s\n", printable(key).c_str());
    for (const std::string& line : split(trim(value), '\n'))
      std::printf("  %s\n", printable(line).c_str());
  }

  void print_checkpoint(const archive::LightningCheckpoint& checkpoint) {
    std::printf("\ncheckpoint\n");
    std::printf(
        "  global_step %lld, epoch %lld, Lightning %s\n",
        static_cast<long long>(checkpoint.global_step), static_cast<long long>(checkpoint.epoch),
        checkpoint.lightning_version.empty() ? "(unknown)"
                                             : printable(checkpoint.lightning_version).c_str());
    for (size_t i = 0; i < checkpoint.optimizers.size(); ++i) {
      const archive::OptimizerState& optimizer = checkpoint.optimizers[i];
      std::map<std::string, size_t> states;
      for (const archive::ParamState& param : optimizer.params)
        for (const TensorInfo& info : param.tensors) ++states[info.name];
      std::string text;
      for (const auto& [name, count] : states) text += str_cat(", ", count, " x ", printable(name));
      std::printf("  optimizer %zu: state of %zu parameters%s\n", i, optimizer.params.size(),
                  text.c_str());
      for (size_t g = 0; g < optimizer.groups.size(); ++g) {
        const archive::ParamGroup& group = optimizer.groups[g];
        std::string numbers;
        for (const auto& [name, value] : group.numbers)
          numbers += str_cat(", ", printable(name), " ", value);
        std::printf("    group %zu: %zu parameters%s\n", g, group.params.size(), numbers.c_str());
      }
    }
    for (const archive::SchedulerState& scheduler : checkpoint.schedulers)
      if (scheduler.last_epoch)
        std::printf("  schedule: last_epoch %lld\n", static_cast<long long>(*scheduler.last_epoch));
    if (checkpoint.scaler) std::printf("  gradient scaler: scale %g\n", checkpoint.scaler->scale);
    std::printf("\ncontents\n");
    print_node(checkpoint.file.tree, checkpoint.file.root, "", 1);
  }

  // A bounded look at the values: three levels, a few dozen items each, a few hundred lines in all.
  void print_node(const NodeTree& tree, NodeId id, const std::string& key, int depth) {
    if (lines_left_-- <= 0) {
      if (lines_left_ == -1) std::printf("  ...\n");
      return;
    }
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    const std::string label = key.empty() ? "" : printable(key.substr(0, 100)) + ": ";
    std::printf("%s%s%s\n", indent.c_str(), label.c_str(), brief(tree, id).c_str());
    if (tree.is(id, NodeKind::kObject)) id = tree.object_items(id);
    if (id == kNoNode || depth >= 3 || id == weights_) return;
    const NodeKind kind = tree.kind(id);
    const bool dict = kind == NodeKind::kDict;
    if (!dict && kind != NodeKind::kList && kind != NodeKind::kTuple) return;
    const std::vector<NodeId>& items = tree.items(id);
    const size_t step = dict ? 2 : 1;
    size_t shown = 0;
    for (size_t i = 0; i + step <= items.size(); i += step) {
      if (++shown > 24) {
        std::printf("%s  ... %zu more\n", indent.c_str(), items.size() / step - 24);
        return;
      }
      print_node(tree, items[i + step - 1], dict ? key_text(tree, items[i]) : str_cat(i),
                 depth + 1);
    }
  }

  static std::string key_text(const NodeTree& tree, NodeId id) {
    if (tree.is(id, NodeKind::kString)) return std::string(tree.text(id));
    if (const auto number = tree.as_int(id)) return str_cat(*number);
    return archive::node_kind_name(tree.kind(id));
  }

  std::string brief(const NodeTree& tree, NodeId id) const {
    switch (tree.kind(id)) {
      case NodeKind::kNone:
        return "None";
      case NodeKind::kBool:
        return *tree.as_bool(id) ? "True" : "False";
      case NodeKind::kInt:
      case NodeKind::kFloat:
        return str_cat(*tree.as_number(id));
      case NodeKind::kString:
        return archive::quoted(tree.text(id), 80);
      case NodeKind::kGlobal:
        return printable(tree.text(id));
      case NodeKind::kObject:
        return str_cat("object of ", printable(tree.object_class(id)), " (kept closed)");
      case NodeKind::kDict:
        return str_cat("dict of ", tree.dict_size(id));
      case NodeKind::kList:
      case NodeKind::kTuple:
      case NodeKind::kSet:
        return str_cat(archive::node_kind_name(tree.kind(id)), " of ", tree.items(id).size());
      case NodeKind::kTensor: {
        const archive::TorchFile& torch = file_.lightning ? file_.lightning->file : *file_.torch;
        const TensorInfo* info = torch.tensor(id);
        return str_cat("tensor ", dtype_name(info->dtype), " ", archive::shape_text(info->shape));
      }
      default:
        return archive::node_kind_name(tree.kind(id));
    }
  }

  void print_branch(const Branch& branch, const std::string& name, int depth) {
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    int inner = depth;
    if (!name.empty()) {
      std::printf("%s%s  %zu tensor%s, %s\n", indent.c_str(), printable(name).c_str(), branch.count,
                  branch.count == 1 ? "" : "s", archive::human_bytes(branch.bytes).c_str());
      ++inner;
    }
    const std::string leaf_indent(static_cast<size_t>(2 * inner), ' ');
    const int name_width = std::max(12, 40 - 2 * inner);
    for (const size_t i : branch.leaves) {
      const TensorInfo& info = file_.tensors.tensors()[i];
      const size_t skip = common_parts(info.name, name_of_path());
      std::printf("%s%-*s %-8s %-18s %10s%s%s\n", leaf_indent.c_str(), name_width,
                  printable(info.name.substr(skip)).c_str(), dtype_name(info.dtype),
                  archive::shape_text(info.shape).c_str(),
                  archive::human_bytes(info.nbytes()).c_str(),
                  checksums_.of_tensor.empty() ? "" : "  ",
                  checksums_.of_tensor.empty() ? "" : checksums_.of_tensor[i].c_str());
    }
    for (const Branch& child : branch.children) {
      // A chain without forks is one line: conv.batch_norm.
      std::string label = child.name;
      const Branch* at = &child;
      path_.push_back(child.name);
      size_t pushed = 1;
      while (at->leaves.empty() && at->children.size() == 1) {
        at = &at->children[0];
        label += "." + at->name;
        path_.push_back(at->name);
        ++pushed;
      }
      print_branch(*at, label, inner);
      path_.resize(path_.size() - pushed);
    }
  }
  std::string name_of_path() const { return path_.empty() ? "" : join(path_, ".") + "."; }
  static size_t common_parts(const std::string& name, const std::string& prefix) {
    return starts_with(name, prefix) ? prefix.size() : 0;
  }

  const AnyArchive& file_;
  const Checksums& checksums_;
  std::vector<std::string> path_;
  NodeId weights_ = kNoNode;  // the state dict, which gets its own section
  int lines_left_ = 400;
};

Json json_of(const InspectOptions& options, const AnyArchive& file, const Checksums& checksums) {
  Json root;
  root["file"] = options.file;
  root["kind"] = archive::file_kind_name(file.kind);
  root["bytes"] = file.file_bytes;
  if (file.nemo) {
    root["compressed"] = file.nemo->compressed;
    for (const archive::NemoMember& member : file.nemo->members)
      root["members"].push_back({{"name", member.name}, {"bytes", member.size}});
  }
  if (const std::string config = config_of(file); !config.empty()) root["config"] = config;
  if (file.lightning) {
    Json& out = root["checkpoint"];
    out["global_step"] = file.lightning->global_step;
    out["epoch"] = file.lightning->epoch;
    out["lightning_version"] = file.lightning->lightning_version;
    out["optimizers"] = Json::array();
    for (const archive::OptimizerState& optimizer : file.lightning->optimizers) {
      Json entry{{"params_with_state", optimizer.params.size()}, {"groups", Json::array()}};
      for (const archive::ParamGroup& group : optimizer.groups) {
        Json numbers = Json::object();
        for (const auto& [name, value] : group.numbers) numbers[name] = value;
        entry["groups"].push_back(
            {{"params", group.params.size()}, {"betas", group.betas}, {"values", numbers}});
      }
      out["optimizers"].push_back(entry);
    }
    out["schedules"] = Json::array();
    for (const archive::SchedulerState& scheduler : file.lightning->schedulers)
      out["schedules"].push_back({{"last_epoch", scheduler.last_epoch.value_or(-1)},
                                  {"base_lrs", scheduler.base_lrs},
                                  {"last_lrs", scheduler.last_lrs}});
    if (file.lightning->scaler) out["scaler"] = {{"scale", file.lightning->scaler->scale}};
  }
  if (!file.tensors.text_metadata().empty()) root["metadata"] = file.tensors.text_metadata();
  uint64_t elements = 0;
  Json tensors = Json::array();
  for (size_t i = 0; i < file.tensors.tensors().size(); ++i) {
    const TensorInfo& info = file.tensors.tensors()[i];
    elements += info.numel();
    Json entry{{"name", info.name},
               {"dtype", dtype_name(info.dtype)},
               {"shape", info.shape},
               {"bytes", info.nbytes()}};
    if (!checksums.of_tensor.empty()) entry["xxh64"] = checksums.of_tensor[i];
    tensors.push_back(std::move(entry));
  }
  root["num_tensors"] = file.tensors.tensors().size();
  root["num_elements"] = elements;
  root["tensor_bytes"] = file.tensors.total_bytes();
  if (!checksums.of_all.empty()) root["checksum"] = checksums.of_all;
  root["tensors"] = std::move(tensors);
  return root;
}

}  // namespace

Status run_inspect(const std::vector<std::string>& args) {
  InspectOptions options;
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      std::printf("%s", kInspectHelp);
      return ok_status();
    }
    if (arg == "--json") {
      options.json = true;
    } else if (arg == "--no-checksums") {
      options.checksums = false;
    } else if (starts_with(arg, "-")) {
      return invalid_argument(str_cat("unknown option '", arg, "'"))
          .with_hint("`aerie inspect --help` shows the options");
    } else if (options.file.empty()) {
      options.file = arg;
    } else {
      return invalid_argument("one file is needed, got several");
    }
  }
  if (options.file.empty())
    return invalid_argument("one file is needed").with_hint("aerie inspect FILE");
  AERIE_ASSIGN_OR_RETURN(options.file, checkpoint_or_file(Env::real(), options.file));
  AERIE_ASSIGN_OR_RETURN(const AnyArchive file, archive::open_any(Env::real(), options.file));
  Checksums checksums;
  if (options.checksums) {
    AERIE_ASSIGN_OR_RETURN(checksums, compute_checksums(file));
  }
  if (options.json) {
    const Json json = json_of(options, file, checksums);
    print_document(json);
  } else {
    TextReport(file, checksums).print(options);
  }
  return ok_status();
}

}  // namespace aerie::tools
