#include "aerie/config/dialects/hydra/config_args.h"

#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

struct Option {
  std::string_view name;
  std::string_view short_name;
  bool takes_value;
};

constexpr Option kOptions[] = {
    {"--config-path", "-cp", true},
    {"--config-name", "-cn", true},
    {"--config-dir", "-cd", true},
    {"--cfg", "-c", true},
    {"--resolve", "", false},
    {"--help", "-h", false},
    {"--multirun", "-m", false},
    {"--allow-unknown", "", false},
    {"--info", "-i", false},
    {"--run", "-r", false},
    {"--experimental-rerun", "", true},
};

bool is_yaml_file(std::string_view word) {
  return ends_with(word, ".yaml") || ends_with(word, ".yml");
}

bool is_override(std::string_view word) {
  return !word.empty() &&
         (word[0] == '~' || word[0] == '+' || word.find('=') != std::string_view::npos);
}

Status unknown_option(std::string_view name, const std::vector<ExtraOption>& extra_options) {
  std::vector<std::string> names;
  for (const Option& option : kOptions) names.emplace_back(option.name);
  for (const ExtraOption& option : extra_options) names.emplace_back(option.name);
  const std::string near = nearest_name(name, names);
  return invalid_argument(str_cat("unknown option '", std::string(name), "'"))
      .with_hint(near.empty() ? "`--help` lists the options" : str_cat("did you mean ", near, "?"));
}

Status store(ConfigArgs& out, std::string_view name, const std::string& value) {
  if (name == "--config-path") out.config_path = value;
  if (name == "--config-name") out.config_name = value;
  if (name == "--config-dir") out.config_dir = value;
  if (name == "--allow-unknown") out.allow_unknown = true;
  if (name == "--resolve") out.resolve = true;
  if (name == "--help") out.help = true;
  if (name == "--cfg") {
    if (value != "job" && value != "all" && value != "hydra")
      return invalid_argument(str_cat("--cfg takes job, hydra or all, not '", value, "'"));
    out.cfg = value;
  }
  if (name == "--multirun")
    return invalid_argument("--multirun is not available: one run at a time")
        .with_hint("start the runs from a shell loop");
  if (name == "--info" || name == "--experimental-rerun")
    return invalid_argument(str_cat(std::string(name), " is not available"))
        .with_hint("`aerie config show` prints the effective configuration");
  return ok_status();
}

}  // namespace

Result<ConfigArgs> parse_config_args(const std::vector<std::string>& args,
                                     const std::vector<ExtraOption>& extra_options) {
  ConfigArgs out;
  bool only_words = false;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (only_words || arg.empty() || arg[0] != '-' || arg == "-") {
      if (is_override(arg))
        out.overrides.push_back(arg);
      else if (is_yaml_file(arg))
        out.files.push_back(arg);
      else
        out.words.push_back(arg);
      continue;
    }
    if (arg == "--") {
      only_words = true;
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    std::string_view known;
    bool takes_value = false;
    bool is_extra = false;
    for (const Option& option : kOptions)
      if (name == option.name || (!option.short_name.empty() && name == option.short_name)) {
        known = option.name;
        takes_value = option.takes_value;
      }
    for (const ExtraOption& option : extra_options)
      if (name == option.name) {
        known = option.name;
        takes_value = option.takes_value;
        is_extra = true;
      }
    if (known.empty()) return unknown_option(name, extra_options);
    std::string value;
    if (takes_value) {
      if (equals != std::string::npos)
        value = arg.substr(equals + 1);
      else if (i + 1 < args.size())
        value = args[++i];
      else
        return invalid_argument(str_cat(std::string(known), " needs a value"));
    } else if (equals != std::string::npos) {
      return invalid_argument(str_cat(std::string(known), " takes no value"));
    }
    if (is_extra)
      out.extra[std::string(known)] = std::move(value);
    else
      AERIE_RETURN_IF_ERROR(store(out, known, value));
  }
  return out;
}

std::string_view config_options_help() {
  return "  --config-path DIR   folder of the config (relative to the working directory)\n"
         "  --config-name NAME  file in it, extension optional; or name a .yaml file directly\n"
         "  --config-dir DIR    searched as well\n"
         "  --allow-unknown     unknown keys are warnings\n"
         "  a.b=v +a.b=v ++a.b=v ~a.b   change, add, change or add, delete a key (Hydra's "
         "grammar)\n";
}

}  // namespace aerie::config
