// `aerie convert IN OUT`: weights from one format to another.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/averages.h"
#include "aerie/archive/nemo_config.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/text.h"
#include "aerie/archive/tree_copy.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "checkpoint_path.h"
#include "command.h"
#ifdef AERIE_WITH_TORCH
#include "aerie/models/nest/run/lightning_export.h"
#endif

namespace aerie::tools {
namespace {

using archive::AnyArchive;
using archive::NodeId;
using archive::NodeTree;
using archive::OutTensor;
using archive::Sink;

constexpr const char* kConvertHelp =
    "usage: aerie convert IN OUT [--config FILE] [--ema]\n\n"
    "Writes the weights of IN (.nemo, .ckpt, .pt, .safetensors, the folder of a checkpoint of "
    "aerie "
    "train, or the folder of\n"
    "a run, whose newest checkpoint is taken) as OUT; the "
    "extension of OUT says how:\n\n"
    "  .nemo         NeMo archive; needs the model's configuration: IN's own, or --config\n"
    "  .ckpt         as Lightning writes it. From the folder of a checkpoint with optimizer, "
    "schedule, counters and the\n"
    "                model's configuration: NeMo's trainer.fit(ckpt_path=OUT) goes on from it. "
    "From "
    "a .ckpt the same, but\n"
    "                without objects of foreign classes, so that torch.load(weights_only=True) "
    "takes it. Else weights alone\n"
    "  .pt           the bare state dict\n"
    "  .safetensors  with the configuration in its metadata, when IN has one\n\n"
    "  --config FILE  a run configuration with a `model` node, or a model_config.yaml\n"
    "  --ema          the averaged weights of a checkpoint (exp_manager.ema), with the model's own "
    "buffers; as .ckpt what NeMo\n"
    "                 calls x-EMA.ckpt and asks for beside x.ckpt where it averages too\n\n"
    "OUT appears whole or not at all. Values, types and names are kept exactly.\n\n"
    "examples:\n"
    "  aerie convert nest.nemo nest.safetensors\n"
    "  aerie convert epoch=3-step=2500.ckpt nest.nemo\n"
    "  aerie convert nemo_experiments/NEST nest.nemo\n"
    "  aerie convert nemo_experiments/NEST/checkpoints/NEST--val_loss=5.1-step=2500-last "
    "nest.nemo\n"
    "  aerie convert --ema nemo_experiments/NEST/checkpoints/NEST--val_loss=5.1-step=2500-last "
    "nest-EMA.nemo\n"
    "  aerie convert weights.safetensors nest.nemo --config "
    "configs/nest/nest_fast-conformer.yaml\n\n"
    "exit code: 0 done, 2 the command line or config is wrong, 3 IN is damaged\n";

constexpr const char* kConfigKey = "model_config";  // in safetensors metadata

struct ConvertOptions {
  std::string in, out, config;
  bool ema = false;
};

constexpr const char* kAverages = "ema.safetensors";

Result<ConvertOptions> parse_convert_args(const std::vector<std::string>& args) {
  ConvertOptions options;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--config" && i + 1 < args.size()) {
      options.config = args[++i];
    } else if (starts_with(arg, "--config=")) {
      options.config = arg.substr(9);
    } else if (arg == "--ema") {
      options.ema = true;
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

// The folder of the native checkpoint that a file is part of; empty when it is none.
std::string checkpoint_of(const std::string& path) {
  const std::string name = base_name(path);
  if (name != "model.safetensors" && name != kAverages) return "";
  const std::string dir = parent_path(path);
  return Env::real().exists(join_path(dir, "manifest.json")) ? dir : "";
}

// The averaged weights of a checkpoint as a whole model; `averages` keeps what they read from.
Result<std::vector<OutTensor>> averaged_tensors(Env& env, const AnyArchive& file,
                                                const std::string& in, AnyArchive& averages) {
  const std::string path = join_path(in, kAverages);
  if (file.kind != archive::FileKind::kCheckpoint)
    return invalid_argument("--ema needs the folder of a checkpoint").with_context(in);
  if (!env.exists(path))
    return invalid_argument("the checkpoint holds no averaged weights")
        .with_context(in)
        .with_hint("they are kept with exp_manager.ema.enable=true");
  AERIE_ASSIGN_OR_RETURN(averages, archive::open_any(env, path));
  auto tensors = archive::with_averages(archive::out_tensors(file.tensors),
                                        archive::out_tensors(averages.tensors));
  if (!tensors.ok()) return tensors.status().with_context(path);
  return tensors;
}

// Weights alone, without the buffers that NeMo's strict restore asks for, make no .nemo.
Status check_whole(const std::vector<OutTensor>& tensors, const config::Value& model,
                   const std::string& in) {
  const config::Value* target = model.child("target");
  if (target == nullptr || !target->is_string() ||
      target->as_string().find("MaskedTokenPredModel") == std::string::npos)
    return ok_status();
  const config::Value* norm = model.find("encoder.conv_norm_type");
  const bool batch_norm =
      norm == nullptr || !norm->is_string() || norm->as_string() == "batch_norm";
  const std::vector<std::string> missing = archive::missing_buffers(tensors, batch_norm);
  if (missing.empty()) return ok_status();
  return data_error(str_cat("NeMo could not restore this: ", missing.size(),
                            " buffers are missing, the first is ", missing.front()))
      .with_context(in)
      .with_hint("averaged weights lie in the folder of a checkpoint: convert that, with --ema");
}

// The text of model_config.yaml, from wherever there is one; empty when there is none.
Result<std::string> find_config(const ConvertOptions& options, const AnyArchive& file,
                                std::string* from) {
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
      std::fprintf(stderr, "warning: %s\n", printable_lines(value.status().to_string()).c_str());
    }
    return std::string();
  }
  if (file.kind == archive::FileKind::kCheckpoint || !checkpoint_of(options.in).empty()) {
    // <run>/checkpoints/<stem>: the run's own config lies two folders up.
    const std::string dir =
        file.kind == archive::FileKind::kCheckpoint ? options.in : checkpoint_of(options.in);
    const std::string run = join_path(dir, "../../config.yaml");
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
    std::fprintf(stderr, "note: left out %s\n", printable(path).c_str());
  if (copy.root == archive::kNoNode)
    return data_error("nothing but foreign objects").with_context(checkpoint.file.tensors.name());
  return archive::TorchWriter::make(tree, copy.root, archive::out_tensors(checkpoint.file.tensors),
                                    prefix);
}

Result<archive::TorchWriter> make_torch(const AnyArchive& file, std::vector<OutTensor> tensors,
                                        const std::string& out) {
  const std::string prefix = file_stem(out).empty() ? "archive" : file_stem(out);
  const bool lightning = to_lower(file_extension(out)) == ".ckpt";
  if (lightning && file.lightning) return rewrite_checkpoint(*file.lightning, prefix);
  NodeTree tree;
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
      std::printf("%s", kConvertHelp);
      return ok_status();
    }
  }
  AERIE_ASSIGN_OR_RETURN(ConvertOptions options, parse_convert_args(args));
  const std::string extension = to_lower(file_extension(options.out));
  if (extension != ".nemo" && extension != ".ckpt" && extension != ".pt" &&
      extension != ".safetensors")
    return invalid_argument(str_cat("cannot tell the format of '", options.out, "'"))
        .with_hint("end it with .nemo, .ckpt, .pt or .safetensors");
  Env& env = Env::real();
  // The averages are no model without the buffers beside them.
  if (base_name(options.in) == kAverages && !checkpoint_of(options.in).empty()) {
    options.in = checkpoint_of(options.in);
    options.ema = true;
  }
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
                 printable_lines(found.status().to_string()).c_str());
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
#ifdef AERIE_WITH_TORCH
  const bool whole = extension == ".ckpt" && file.kind == archive::FileKind::kCheckpoint &&
                     env.exists(join_path(options.in, "state.json"));
  if (whole && config.empty())
    std::fprintf(stderr,
                 "note: left out the training state, for which the configuration of the run is "
                 "needed; name it with --config\n");
  if (whole && !config.empty()) {
    AERIE_ASSIGN_OR_RETURN(const train::ConvertedCheckpoint done,
                           train::convert_native_checkpoint(env, options.in, options.out,
                                                            options.config, options.ema, progress));
    bar.finish();
    std::printf("wrote %s: %zu tensors and the training state, %s, config from %s\n",
                printable(options.out).c_str(), done.num_tensors,
                archive::human_bytes(done.bytes).c_str(), printable(done.config).c_str());
    if (done.has_averages && !options.ema)
      std::fprintf(stderr,
                   "note: NeMo with exp_manager.ema asks for the averages beside it: aerie convert "
                   "--ema %s %s\n",
                   printable(options.in).c_str(),
                   printable(train::averaged_path(options.out)).c_str());
    return ok_status();
  }
#endif
  AnyArchive averages;
  std::vector<OutTensor> tensors;
  if (options.ema) {
    AERIE_ASSIGN_OR_RETURN(tensors, averaged_tensors(env, file, options.in, averages));
  } else {
    tensors = archive::out_tensors(file.tensors);
  }
  if (extension == ".nemo") {
    if (config.empty())
      return invalid_argument(str_cat("'", options.in, "' carries no model configuration"))
          .with_hint("name one with --config");
    auto parsed = config::parse_yaml(config, "model_config.yaml");
    if (!parsed.ok())
      return data_error(parsed.status().to_string())
          .with_context(from)
          .with_hint("name a configuration with --config");
    AERIE_RETURN_IF_ERROR(check_whole(tensors, *parsed, options.in));
    AERIE_RETURN_IF_ERROR(archive::write_nemo(env, options.out, config, tensors, progress));
  } else if (extension == ".safetensors") {
    std::map<std::string, std::string> metadata{{"format", "pt"}};
    if (!config.empty()) metadata[kConfigKey] = config;
    AERIE_RETURN_IF_ERROR(
        archive::write_safetensors(env, options.out, tensors, metadata, progress));
  } else {
    AERIE_ASSIGN_OR_RETURN(const archive::TorchWriter writer,
                           make_torch(file, tensors, options.out));
    AERIE_RETURN_IF_ERROR(archive::write_atomically(
        env, options.out, [&](const Sink& sink) { return writer.write(sink, progress); }));
  }
  bar.finish();
  std::printf("wrote %s: %zu tensors, %s%s\n", printable(options.out).c_str(), tensors.size(),
              archive::human_bytes(file.tensors.total_bytes()).c_str(),
              extension == ".nemo" ? str_cat(", config from ", printable(from)).c_str() : "");
  return ok_status();
}

}  // namespace aerie::tools
