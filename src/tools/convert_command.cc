// `aerie convert IN OUT`: weights from one format to another.
#include <cstdio>
#include <string>
#include <vector>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/nemo_config.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/text.h"
#include "aerie/archive/tree_copy.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "checkpoint_path.h"
#include "command.h"

namespace aerie::tools {
namespace {

using archive::AnyArchive;
using archive::NodeId;
using archive::NodeTree;
using archive::OutTensor;
using archive::Sink;

constexpr const char* kHelp =
    "usage: aerie convert IN OUT [--config FILE]\n\n"
    "Writes the weights of IN (.nemo, .ckpt, .pt, .safetensors, the folder of a checkpoint of "
    "aerie "
    "train, or the folder of\n"
    "a run, whose newest checkpoint is taken) as OUT; the "
    "extension of OUT says how:\n\n"
    "  .nemo         NeMo archive; needs the model's configuration: IN's own, or --config\n"
    "  .ckpt         as Lightning writes it: from a .ckpt with optimizer, schedules and counters, "
    "but without objects of\n"
    "                foreign classes, so that torch.load(weights_only=True) takes it; else weights "
    "alone\n"
    "  .pt           the bare state dict\n"
    "  .safetensors  with the configuration in its metadata, when IN has one\n\n"
    "  --config FILE  a run configuration with a `model` node, or a model_config.yaml\n\n"
    "OUT appears whole or not at all. Values, types and names are kept exactly.\n\n"
    "examples:\n"
    "  aerie convert nest.nemo nest.safetensors\n"
    "  aerie convert epoch=3-step=2500.ckpt nest.nemo\n"
    "  aerie convert nemo_experiments/NEST nest.nemo\n"
    "  aerie convert nemo_experiments/NEST/checkpoints/NEST--val_loss=5.1-step=2500-last "
    "nest.nemo\n"
    "  aerie convert weights.safetensors nest.nemo --config "
    "configs/nest/nest_fast-conformer.yaml\n\n"
    "exit code: 0 done, 2 the command line or config is wrong, 3 IN is damaged\n";

constexpr const char* kConfigKey = "model_config";  // in safetensors metadata

struct Options {
  std::string in, out, config;
};

Result<Options> parse(const std::vector<std::string>& args) {
  Options options;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--config" && i + 1 < args.size()) {
      options.config = args[++i];
    } else if (starts_with(arg, "--config=")) {
      options.config = arg.substr(9);
    } else if (starts_with(arg, "-")) {
      return invalid_argument(str_cat("unknown or incomplete option '", arg, "'"))
          .with_hint("`aerie convert --help` shows the options");
    } else if (options.in.empty()) {
      options.in = arg;
    } else if (options.out.empty()) {
      options.out = arg;
    } else {
      return invalid_argument(str_cat("'", arg, "': only IN and OUT are expected"));
    }
  }
  if (options.out.empty())
    return invalid_argument("IN and OUT are needed").with_hint("aerie convert IN OUT");
  return options;
}

// The text of model_config.yaml, from wherever there is one; empty when there is none.
Result<std::string> find_config(const Options& options, const AnyArchive& file, std::string* from) {
  if (!options.config.empty()) {
    *from = options.config;
    AERIE_ASSIGN_OR_RETURN(const config::Value value, config::load_yaml(options.config));
    return archive::nemo_config_yaml(value).with_context(options.config);
  }
  *from = options.in;
  if (file.nemo) return file.nemo->config_yaml;
  if (file.lightning) {
    auto value = archive::model_config_of(*file.lightning);
    if (value.ok()) return archive::nemo_config_yaml(*value).with_context(options.in);
    if (value.status().code() != StatusCode::kNotFound) {
      std::fprintf(stderr, "warning: %s\n", value.status().to_string().c_str());
    }
    return std::string();
  }
  if (file.kind == archive::FileKind::kCheckpoint) {
    // <run>/checkpoints/<stem>: the run's own config lies two folders up.
    const std::string run = join_path(options.in, "../../config.yaml");
    if (Env::real().exists(run)) {
      *from = run;
      AERIE_ASSIGN_OR_RETURN(const config::Value value, config::load_yaml(run));
      return archive::nemo_config_yaml(value).with_context(run);
    }
  }
  const auto& metadata = file.tensors.text_metadata();
  const auto it = metadata.find(kConfigKey);
  return it == metadata.end() ? std::string() : it->second;
}

// A .ckpt made of a .ckpt: everything but foreign objects.
Result<archive::TorchWriter> rewrite_checkpoint(const archive::LightningCheckpoint& checkpoint,
                                                const std::string& prefix) {
  NodeTree tree;
  const archive::PlainCopy copy =
      archive::copy_plain(checkpoint.file.tree, checkpoint.file.root, tree);
  for (const std::string& path : copy.left_out)
    std::fprintf(stderr, "note: left out %s\n", archive::printable(path).c_str());
  if (copy.root == archive::kNoNode)
    return data_error("nothing but foreign objects").with_context(checkpoint.file.tensors.name());
  return archive::TorchWriter::make(tree, copy.root, archive::out_tensors(checkpoint.file.tensors),
                                    prefix);
}

Result<archive::TorchWriter> make_torch(const AnyArchive& file, const std::string& out) {
  const std::string prefix = file_stem(out).empty() ? "archive" : file_stem(out);
  const bool lightning = to_lower(file_extension(out)) == ".ckpt";
  if (lightning && file.lightning) return rewrite_checkpoint(*file.lightning, prefix);
  NodeTree tree;
  std::vector<OutTensor> tensors = archive::out_tensors(file.tensors);
  const NodeId weights = archive::add_state_dict(tree, tensors);
  if (!lightning) return archive::TorchWriter::make(tree, weights, std::move(tensors), prefix);
  const NodeId root = tree.add_dict();
  tree.set(root, "epoch", tree.add_int(0));
  tree.set(root, "global_step", tree.add_int(0));
  tree.set(root, "pytorch-lightning_version", tree.add_string("2.4.0"));
  tree.set(root, "state_dict", weights);
  return archive::TorchWriter::make(tree, root, std::move(tensors), prefix);
}

}  // namespace

Status run_convert(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      std::printf("%s", kHelp);
      return ok_status();
    }
  }
  AERIE_ASSIGN_OR_RETURN(Options options, parse(args));
  const std::string extension = to_lower(file_extension(options.out));
  if (extension != ".nemo" && extension != ".ckpt" && extension != ".pt" &&
      extension != ".safetensors")
    return invalid_argument(str_cat("cannot tell the format of '", options.out, "'"))
        .with_hint("end it with .nemo, .ckpt, .pt or .safetensors");
  Env& env = Env::real();
  AERIE_ASSIGN_OR_RETURN(options.in, checkpoint_or_file(env, options.in));
  AERIE_ASSIGN_OR_RETURN(const AnyArchive file, archive::open_any(env, options.in));
  std::string from;
  std::string config;
  auto found = find_config(options, file, &from);
  if (found.ok()) {
    config = std::move(found).value();
  } else if (extension == ".nemo" || !options.config.empty()) {
    return found.status();
  } else {
    // The other formats do not need it.
    std::fprintf(stderr, "note: left out the configuration: %s\n",
                 found.status().to_string().c_str());
  }

  ProgressOptions bar_options;
  bar_options.label = "converting";
  bar_options.total = file.tensors.total_bytes();
  bar_options.unit = "bytes";
  Progress bar(std::move(bar_options));
  uint64_t shown = 0;
  const archive::ProgressFn progress = [&](uint64_t done, uint64_t) {
    bar.add(done - std::min(done, shown));
    shown = std::max(done, shown);
  };
  const std::vector<OutTensor> tensors = archive::out_tensors(file.tensors);
  if (extension == ".nemo") {
    if (config.empty())
      return invalid_argument(str_cat("'", options.in, "' carries no model configuration"))
          .with_hint("name one with --config");
    auto parsed = config::parse_yaml(config, "model_config.yaml");
    if (!parsed.ok())
      return data_error(parsed.status().to_string())
          .with_context(from)
          .with_hint("name a configuration with --config");
    AERIE_RETURN_IF_ERROR(archive::write_nemo(env, options.out, config, tensors, progress));
  } else if (extension == ".safetensors") {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    if (!config.empty()) metadata[kConfigKey] = config;
    AERIE_RETURN_IF_ERROR(
        archive::write_safetensors(env, options.out, tensors, metadata, progress));
  } else {
    AERIE_ASSIGN_OR_RETURN(const archive::TorchWriter writer, make_torch(file, options.out));
    AERIE_RETURN_IF_ERROR(archive::write_atomically(
        env, options.out, [&](const Sink& sink) { return writer.write(sink, progress); }));
  }
  bar.finish();
  std::printf("wrote %s: %zu tensors, %s%s\n", options.out.c_str(), tensors.size(),
              archive::human_bytes(file.tensors.total_bytes()).c_str(),
              extension == ".nemo" ? str_cat(", config from ", from).c_str() : "");
  return ok_status();
}

}  // namespace aerie::tools
