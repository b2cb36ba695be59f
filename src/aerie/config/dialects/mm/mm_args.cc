#include "aerie/config/dialects/mm/mm_args.h"

#include <algorithm>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/config/grammar.h"

namespace aerie::config::mm {
namespace {

enum class Takes { kNothing, kOne, kSome };
struct Option {
  std::string_view name;
  Takes takes;
  bool ours_alone;  // no other dialect knows it
};

constexpr Option kOptions[] = {
    {"--work-dir", Takes::kOne, true},
    {"--run-dir", Takes::kOne, true},
    {"--gpu-ids", Takes::kSome, true},
    {"--gpu-id", Takes::kOne, true},
    {"--gpus", Takes::kOne, true},
    {"--options", Takes::kSome, true},
    {"--cfg-options", Takes::kSome, true},
    {"--load-from", Takes::kOne, true},
    {"--resume-from", Takes::kOne, true},
    {"--auto-resume", Takes::kNothing, true},
    {"--no-validate", Takes::kNothing, true},
    {"--seed", Takes::kOne, true},
    {"--diff_seed", Takes::kNothing, true},
    {"--diff-seed", Takes::kNothing, true},
    {"--deterministic", Takes::kNothing, true},
    {"--dump-precision", Takes::kNothing, true},
    {"--launcher", Takes::kOne, true},
    {"--local_rank", Takes::kOne, true},
    {"--local-rank", Takes::kOne, true},
    {"--allow-unknown", Takes::kNothing, false},
    {"--help", Takes::kNothing, false},
    {"-h", Takes::kNothing, false},
};

bool is_option(std::string_view word) {
  // "-1" and "-0.5" are values.
  return word.size() > 1 && word[0] == '-' && !(word[1] >= '0' && word[1] <= '9') && word[1] != '.';
}

bool is_file(std::string_view word) {
  return (ends_with(word, ".py") || ends_with(word, ".yaml") || ends_with(word, ".yml")) &&
         word.find('=') == std::string_view::npos;
}

// What BEVFusion's programs take as an option: a key of the configuration.
bool is_key(std::string_view name) {
  if (name.empty() || is_digit(name[0]) || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return is_digit(c) || is_letter(c) || c == '_' || c == '.' || c == '-' || c == '*';
  });
}

const Option* find(std::string_view name) {
  for (const Option& option : kOptions)
    if (option.name == name) return &option;
  std::string dashes(name);
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  for (const Option& option : kOptions)
    if (option.name == dashes) return &option;
  return nullptr;
}

Status wrong(std::string_view name, const std::string& value, const char* expected) {
  return invalid_argument(str_cat(std::string(name), " takes ", expected, ", not '", value, "'"));
}

Result<int64_t> whole(std::string_view name, const std::string& value, int64_t least) {
  const auto number = parse_int64(value, least);
  if (!number.ok()) return wrong(name, value, "a whole number");
  return *number;
}

Status store(std::string_view name, const std::vector<std::string>& values, MmArgs& out,
             bool& options_seen, bool& cfg_options_seen) {
  const std::string first = values.empty() ? "" : values[0];
  if (name == "--work-dir" || name == "--run-dir") out.work_dir = first;
  if (name == "--load-from") out.load_from = first;
  if (name == "--resume-from") out.resume_from = first;
  if (name == "--auto-resume") out.auto_resume = true;
  if (name == "--no-validate") out.no_validate = true;
  if (name == "--diff_seed" || name == "--diff-seed") out.diff_seed = true;
  if (name == "--deterministic") out.deterministic = true;
  if (name == "--dump-precision") out.dump_precision = true;
  if (name == "--allow-unknown") out.allow_unknown = true;
  if (name == "--help" || name == "-h") out.help = true;
  if (name == "--gpus") {
    AERIE_ASSIGN_OR_RETURN(out.gpus, whole(name, first, 1));
    out.warnings.push_back("--gpus is deprecated: --gpu-ids names the devices");
  }
  if (name == "--gpu-ids" || name == "--gpu-id") {
    out.gpu_ids.clear();
    for (const std::string& value : values) {
      AERIE_ASSIGN_OR_RETURN(const int64_t id, whole(name, value, 0));
      if (std::find(out.gpu_ids.begin(), out.gpu_ids.end(), id) != out.gpu_ids.end())
        return invalid_argument(str_cat(std::string(name), " names ", id, " twice"));
      out.gpu_ids.push_back(id);
    }
  }
  if (name == "--seed" || name == "--local_rank" || name == "--local-rank") {
    AERIE_ASSIGN_OR_RETURN(const int64_t number, whole(name, first, 0));
    (name == "--seed" ? out.seed : out.local_rank) = number;
  }
  if (name == "--launcher") {
    if (first != "none" && first != "pytorch" && first != "slurm" && first != "mpi")
      return wrong(name, first, "none, pytorch, slurm or mpi");
    out.launcher = first;
  }
  if (name == "--options" || name == "--cfg-options") {
    (name == "--options" ? options_seen : cfg_options_seen) = true;
    if (options_seen && cfg_options_seen)
      return invalid_argument("--options and --cfg-options cannot both be given")
          .with_hint("they mean the same; --options is the older name");
    for (const std::string& value : values)
      if (value.find('=') == std::string::npos)
        return invalid_argument(str_cat(std::string(name), " takes KEY=VALUE, not '", value, "'"))
            .with_hint("for example runner.max_iters=100");
    out.options.insert(out.options.end(), values.begin(), values.end());
  }
  return ok_status();
}

}  // namespace

Status unknown_option(std::string_view name) {
  std::vector<std::string> names;
  for (const Option& one : kOptions) names.emplace_back(one.name);
  const std::string near = nearest_name(name, names);
  return invalid_argument(str_cat("unknown option '", std::string(name), "'"))
      .with_hint(near.empty() ? "`--help` lists the options" : str_cat("did you mean ", near, "?"));
}

bool is_mm_command_line(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (!is_option(arg)) {
      if (ends_with(arg, ".py") && arg.find('=') == std::string::npos) return true;
      continue;
    }
    const Option* option = find(arg.substr(0, arg.find('=')));
    if (option != nullptr && option->ours_alone) return true;
  }
  return false;
}

Result<MmArgs> parse_mm_args(const std::vector<std::string>& args) {
  MmArgs out;
  bool options_seen = false, cfg_options_seen = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (!is_option(arg)) {
      if (out.config.empty())
        out.config = arg;
      else
        out.words.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const Option* option = find(name);
    // BEVFusion's programs take any key of the configuration as an option.
    const std::string key = starts_with(name, "--") ? name.substr(2) : "";
    const bool dotted = key.find('.') != std::string::npos;
    if (option == nullptr && is_key(key) && (dotted || key.find('-') == std::string::npos)) {
      if (equals != std::string::npos)
        out.changes.emplace_back(key, arg.substr(equals + 1));
      else if (i + 1 < args.size() && (dotted || !(is_file(args[i + 1]) || is_option(args[i + 1]))))
        out.changes.emplace_back(key, args[++i]);
      else if (dotted)
        return invalid_argument(str_cat(name, " needs a value"));
      else
        return unknown_option(name);
      continue;
    }
    if (option == nullptr) return unknown_option(name);
    std::vector<std::string> values;
    if (equals != std::string::npos) {
      if (option->takes == Takes::kNothing)
        return invalid_argument(str_cat(name, " takes no value"));
      values.push_back(arg.substr(equals + 1));
    }
    while (option->takes != Takes::kNothing && i + 1 < args.size() && !is_option(args[i + 1]) &&
           (option->takes == Takes::kSome || values.empty())) {
      // A configuration behind the list of devices or options is none of them.
      const std::string& next = args[i + 1];
      if (option->takes == Takes::kSome && is_file(next)) break;
      values.push_back(next);
      ++i;
    }
    if (option->takes != Takes::kNothing && values.empty())
      return invalid_argument(str_cat(name, " needs a value"));
    AERIE_RETURN_IF_ERROR(store(option->name, values, out, options_seen, cfg_options_seen));
  }
  if (options_seen)
    out.warnings.push_back("--options is deprecated: --cfg-options is its name now");
  if (!out.gpu_ids.empty() && out.gpus)
    return invalid_argument("--gpus and --gpu-ids cannot both be given");
  return out;
}

std::string_view mm_options_help() {
  return "  CONFIG.py|CONFIG.yaml   mm-style configuration, BEVFusion's or our own YAML\n"
         "  --work-dir DIR          the run's folder (default work_dirs/CONFIG)\n"
         "  --gpu-ids 0 [1 ...]     devices; --gpu-id N, --gpus N\n"
         "  --cfg-options K=V ...   change keys: int, float, true, None, a,b or [a,b], (a,b); also "
         "--options\n"
         "  --load-from FILE        weights that start the run\n"
         "  --resume-from FILE      go on from a checkpoint; --auto-resume: from the newest in the "
         "folder\n"
         "  --no-validate           no evaluation during training\n"
         "  --seed N --diff_seed --deterministic\n"
         "  --dump-precision        do not train: print which operations run in which precision\n"
         "  --launcher none|pytorch|slurm|mpi --local_rank N\n"
         "  --model.a.b V           change a key, BEVFusion's way\n"
         "  --allow-unknown         unknown keys are warnings\n";
}

}  // namespace aerie::config::mm
