// `aerie bench claims`: what tuning guides promise, measured on this machine row by row.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <sys/ioctl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "aerie/advisor/claims.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/config/schema/devices.h"
#include "aerie/device/gpu.h"
#include "aerie/version.h"
#include "bench_command.h"
#include "claims_bench.h"
#include "cli.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

using advisor::ClaimProfile;
using advisor::ClaimResult;
using advisor::ClaimRow;
using advisor::ClaimTable;

constexpr int kWidthWithoutTerminal = 160;

struct ClaimsArgs {
  std::string models = "nest,bev", only, out = "claims";
  double seconds = 60.0;
  bool small = false, list = false, again = false, json = false, markdown = false;
};

struct WantedRow {
  ClaimProfile profile;  // that it is measured with
  ClaimRow row;
  std::string key;
};

int terminal_width() {
  struct winsize size {};
  if (::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0)
    return size.ws_col;
  return kWidthWithoutTerminal;
}

std::string name_of_machine(const ClaimTable& machine) {
  return str_cat(machine.cpu, "|", machine.cpus, "|", machine.gpu, "|", machine.commit);
}

// All rows of the models, in their order.
Result<std::vector<WantedRow>> all_rows(const ClaimsArgs& args, const ClaimTable& machine,
                                        int gpus) {
  std::vector<WantedRow> out;
  for (const std::string& model : split(args.models, ',')) {
    if (model != "nest" && model != "bev")
      return invalid_argument(str_cat("--model ", printable(model), " is not known"))
          .with_hint("nest, bev, or nest,bev");
    const ClaimProfile profile{model, args.small || gpus == 0};
    const ClaimProfile stand_in{model, true};
    const std::vector<ClaimRow> rows = advisor::claim_rows(profile);
    const std::vector<ClaimRow> small_rows = advisor::claim_rows(stand_in);
    for (size_t i = 0; i < rows.size(); ++i) {
      // Ranks that have no GPUs are CPU processes: the small sizes.
      const bool ranks = rows[i].gpus > std::max(1, gpus);
      WantedRow wanted{ranks ? stand_in : profile, ranks ? small_rows[i] : rows[i], ""};
      wanted.key =
          advisor::claim_key(name_of_machine(machine), wanted.profile, wanted.row, args.seconds);
      out.push_back(std::move(wanted));
    }
  }
  return out;
}

Result<std::vector<WantedRow>> chosen_rows(const ClaimsArgs& args,
                                           const std::vector<WantedRow>& all) {
  if (args.only.empty()) return all;
  std::vector<std::string> names;
  for (const WantedRow& one : all) names.push_back(one.row.name);
  const std::vector<std::string> wanted = split(args.only, ',');
  for (const std::string& name : wanted)
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string near = nearest_name(name, names);
      return invalid_argument(str_cat("no row is called '", printable(name), "'"))
          .with_hint(near.empty() ? "`aerie bench claims --list` names them"
                                  : str_cat("did you mean ", near, "?"));
    }
  std::vector<WantedRow> out;
  for (const WantedRow& one : all)
    if (std::find(wanted.begin(), wanted.end(), one.row.name) != wanted.end()) out.push_back(one);
  return out;
}

void print_rows(const std::vector<WantedRow>& rows) {
  for (const WantedRow& one : rows) {
    std::printf("%-4s  %-24s  %s\n", one.profile.model.c_str(), one.row.name.c_str(),
                one.row.what.c_str());
    std::printf("%-4s  %-24s  claim: %s%s\n", "", "", one.row.claim.c_str(),
                one.row.gpus > 1    ? str_cat("; needs ", one.row.gpus, " GPUs").c_str()
                : one.row.gpus == 1 ? "; needs a GPU"
                                    : "");
  }
}

// Rows of earlier calls on this machine with this program, whatever time each was given; anything
// else starts anew.
Result<ClaimTable> earlier_results(const std::string& path, const std::vector<WantedRow>& all,
                                   const ClaimTable& machine) {
  if (!Env::real().exists(path)) return ClaimTable{};
  AERIE_ASSIGN_OR_RETURN(const std::string text, Env::real().read_file(path));
  auto table = ClaimTable::from_json(text);
  if (!table.ok())
    return table.status().with_context(path).with_hint("remove it, or choose another --out");
  std::erase_if(table->rows, [&](const ClaimResult& row) {
    return std::none_of(all.begin(), all.end(), [&](const WantedRow& one) {
      return advisor::claim_key(name_of_machine(machine), one.profile, one.row, row.seconds) ==
             row.key;
    });
  });
  return table;
}

// In the order of the definitions, whatever order they were measured in.
void sort_rows(const std::vector<WantedRow>& all, ClaimTable& table) {
  const auto place = [&](const ClaimResult& row) {
    return std::find_if(all.begin(), all.end(),
                        [&](const WantedRow& one) {
                          return one.profile.model == row.model && one.row.name == row.name;
                        }) -
           all.begin();
  };
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [&](const ClaimResult& a, const ClaimResult& b) { return place(a) < place(b); });
}

// The command without the folder, which says nothing to others.
std::string command_text(const std::vector<std::string>& args) {
  std::string out = "aerie bench claims";
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--out") {
      ++i;
    } else if (!starts_with(args[i], "--out=")) {
      out += " " + args[i];
    }
  }
  return out;
}

}  // namespace

Status run_bench_claims(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Measures what tuning guides promise: every row trains two or more settings for a few "
      "seconds\neach, in turn, with the real trainer on data that is made for it, and says whether "
      "the promise\nholds here and why. Finished rows are kept in OUT/claims.json and skipped when "
      "it is called\nagain (the same machine, program and settings); OUT/claims.html shows them as "
      "a page. NEST-L and\nthe seed profile of LSS + Swin on a GPU, small models on a CPU. Rows "
      "for several GPUs are\nmeasured on CPU ranks where there are not enough, and say so.",
      "aerie bench claims");
  app.footer(
      "example: aerie bench claims --model nest --only batch_2_8,workers\n"
      "         aerie bench claims --out claims && xdg-open claims/claims.html");
  ClaimsArgs args;
  app.add_option("--model", args.models, "nest, bev, or both with a comma")->capture_default_str();
  app.add_option("--only", args.only, "rows, a list with commas; --list names them");
  app.add_option("--out", args.out, "folder of results and data")->capture_default_str();
  app.add_option("--seconds", args.seconds, "that a row may take; more give more rounds")
      ->capture_default_str()
      ->check(CLI::Range(2.0, 3600.0));
  app.add_flag("--small", args.small, "the small models on a GPU too");
  app.add_flag("--again", args.again, "measure rows anew that are finished");
  app.add_flag("--list", args.list, "name the rows and end");
  app.add_flag("--markdown", args.markdown, "print the table in Markdown");
  app.add_flag("--json", args.json, "machine-readable output");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, arguments, &help));
  if (help) return ok_status();
  const int gpus = config::count_visible_gpus();
  ClaimTable shown;
  shown.cpu = cpu_name();
  shown.cpus = cpu_count();
  if (gpus > 0 && !device::driver().gpus.empty())
    shown.gpu = str_cat(gpus > 1 ? str_cat(gpus, " x ") : "", device::driver().gpus[0].name);
  shown.commit = kCommit;
  shown.command = command_text(arguments);
  AERIE_ASSIGN_OR_RETURN(const std::vector<WantedRow> all, all_rows(args, shown, gpus));
  AERIE_ASSIGN_OR_RETURN(const std::vector<WantedRow> wanted, chosen_rows(args, all));
  if (args.list) {
    print_rows(wanted);
    return ok_status();
  }

  const SignalCatcher signals;
  const std::string out = expand_user(args.out), file = join_path(out, "claims.json");
  AERIE_RETURN_IF_ERROR(Env::real().create_dirs(out));
  // Rows of the other model are kept, too.
  ClaimsArgs both = args;
  both.models = "nest,bev";
  AERIE_ASSIGN_OR_RETURN(const std::vector<WantedRow> known, all_rows(both, shown, gpus));
  AERIE_ASSIGN_OR_RETURN(ClaimTable kept, earlier_results(file, known, shown));
  kept.cpu = shown.cpu;
  kept.cpus = shown.cpus;
  kept.gpu = shown.gpu;
  kept.commit = shown.commit;
  kept.command = shown.command;
  std::vector<std::pair<std::string, ClaimsBench>> benches;  // by model and size
  for (const WantedRow& one : wanted) {
    const ClaimResult* finished =
        args.again ? nullptr : kept.find(one.profile.model, one.row.name, one.key);
    if (finished != nullptr) {
      if (!args.json)
        std::fprintf(stderr, "%s %s: measured before\n", one.profile.model.c_str(),
                     one.row.name.c_str());
      shown.rows.push_back(*finished);
      continue;
    }
    const std::string id = str_cat(one.profile.model, one.profile.small);
    auto found = std::find_if(benches.begin(), benches.end(),
                              [&](const auto& bench) { return bench.first == id; });
    if (found == benches.end()) {
      AERIE_ASSIGN_OR_RETURN(
          ClaimsBench bench,
          ClaimsBench::make({one.profile, join_path(out, "data"), args.seconds, gpus, args.json}));
      benches.emplace_back(id, std::move(bench));
      found = benches.end() - 1;
    }
    AERIE_ASSIGN_OR_RETURN(ClaimResult result, found->second.measure(one.row));
    // A row that failed is tried again next time.
    if (result.failed.empty()) result.key = one.key;
    result.seconds = args.seconds;
    shown.rows.push_back(result);
    kept.put(std::move(result));
    sort_rows(known, kept);
    AERIE_RETURN_IF_ERROR(Env::real().atomic_replace(file, kept.to_json()));
    AERIE_RETURN_IF_ERROR(
        Env::real().atomic_replace(join_path(out, "claims.html"), kept.to_html()));
  }
  if (args.json)
    print_document(nlohmann::ordered_json::parse(shown.to_json()));
  else
    for (const std::string& line :
         split(args.markdown ? shown.to_markdown() : shown.to_text(terminal_width()), '\n'))
      std::printf("%s\n", printable(line).c_str());
  return ok_status();
}

}  // namespace aerie::tools
