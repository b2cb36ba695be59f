// `aerie bench data --kind nuscenes`: what a sample costs stage by stage, how fast loaders deliver,
// and Python's way of doing the same beside it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/nuscenes_assembler.h"
#include "cli.h"
#include "json_output.h"
#include "nuscenes_input.h"
#include "nuscenes_stages.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;
using nuscenes::DataConfig;
using nuscenes::NuscenesDataset;

struct BenchOptions {
  StageOptions stages;
  double loader_seconds = 10.0;
  std::string workers;   // "1,8"
  std::string profiles;  // "bf,seed"
  std::string peer;
  std::string maps_root, location = "boston-seaport";
  bool json = false;
};

struct LoaderRow {
  std::string profile;
  std::string decode;
  int workers = 0;
  double samples_per_s = 0.0, samples_per_cpu_s = 0.0, first_batch_s = 0.0, cpu_percent = 0.0;
  uint64_t memory_limit = 0, peak_rss = 0, bad = 0;
  std::string limit;
};

struct PeerRow {
  std::string name;
  std::string versions;
  double ms_per_sample = 0.0;  // CPU
  ordered_json line;
};

// What was measured of one profile.
struct ProfileRows {
  StageTimes stages;
  std::vector<LoaderRow> loaders;
  std::optional<PeerRow> images, masks;
};

Result<LoaderRow> measure_loader(const std::shared_ptr<const NuscenesDataset>& dataset,
                                 const config::AerieConfig& aerie, double seconds) {
  data::LoaderOptions options;
  options.seed = aerie.seed;
  options.quiet = true;
  const DataConfig& config = dataset->config();
  LoaderRow out;
  out.decode = nuscenes::decode_mode_name(dataset->rules().decode);
  AERIE_ASSIGN_OR_RETURN(const auto loader,
                         nuscenes::make_nuscenes_loader(dataset, aerie, options));
  // Until every slot of the ring has been touched once.
  const uint64_t warm_batches = loader->stats().ring_slots + 1;
  uint64_t batches = 0;
  double samples = 0.0, began = -1.0, cpu = 0.0;
  const Stopwatch watch;
  while (caught_signal() == 0) {
    AERIE_ASSIGN_OR_RETURN(const data::Batch* batch, loader->next());
    if (batch == nullptr) {
      AERIE_RETURN_IF_ERROR(loader->start_epoch(int64_t{loader->cursor().epoch} + 1));
      continue;
    }
    if (began >= 0.0) samples += static_cast<double>(batch->num_samples());
    loader->release(batch);
    if (began < 0.0 && ++batches >= warm_batches) {
      began = watch.elapsed_s();
      cpu = process_cpu_s();
    }
    if (began >= 0.0 && watch.elapsed_s() >= began + seconds) break;
  }
  const double wall = std::max(1e-9, watch.elapsed_s() - std::max(0.0, began));
  const double used = std::max(1e-9, process_cpu_s() - cpu);
  const data::LoaderStats stats = loader->stats();
  out.workers = config.num_workers < 0 ? stats.workers : static_cast<int>(config.num_workers);
  out.samples_per_s = samples / wall;
  out.samples_per_cpu_s = samples / used;
  out.cpu_percent = 100.0 * used / wall;
  out.first_batch_s = stats.first_batch_s;
  out.memory_limit = loader->memory_bytes();
  out.peak_rss = process_memory().peak_rss_bytes;
  out.bad = stats.bad_samples;
  out.limit = stats.bottleneck();
  return out;
}

// The first JSON object among the lines of a process.
Result<ordered_json> json_line(const ProcessOutput& output, const std::string& script) {
  if (output.exit_code == 0)
    for (const std::string& line : split(output.text, '\n')) {
      if (!starts_with(line, "{")) continue;
      ordered_json parsed = ordered_json::parse(line, nullptr, false);
      if (parsed.is_object()) return parsed;
    }
  return unavailable(str_cat(script, " gave no result: ", tail_of(output.text)))
      .with_hint(
          "AERIE_PYTHON names an interpreter with Pillow, numpy and nuscenes-devkit (numpy < 2)");
}

std::string versions_of(const ordered_json& line) {
  std::vector<std::string> out;
  const auto found = line.find("versions");
  if (found != line.end() && found->is_object())
    for (const auto& [name, version] : found->items())
      if (version.is_string()) out.push_back(str_cat(name, " ", version.get<std::string>()));
  return join(out, ", ");
}

double number_of(const ordered_json& line, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto found = line.find(name); found != line.end() && found->is_number())
      return found->get<double>();
  return 0.0;
}

// Decodes, resizes and turns the same files with the same draws.
Result<PeerRow> run_image_peer(const std::string& folder, const std::string& python,
                               const std::vector<PeerCase>& cases, uint64_t samples,
                               double seconds) {
  const std::string script = join_path(folder, "nuscenes_images.py");
  const TempDir scratch;
  std::string text;
  for (const PeerCase& one : cases) {
    if (one.path.find_first_of(" \t\n") != std::string::npos)
      return invalid_argument(
          str_cat("the peer cannot read paths with blanks: ", printable(one.path)));
    const nuscenes::ImageAugmentation& draw = one.draw;
    const std::string path =
        is_absolute_path(one.path) ? one.path : str_cat(scratch.file("here"), "/", one.path);
    text += str_cat(path, " 1 ", draw.resize, " ", draw.new_width, " ", draw.new_height, " ",
                    draw.crop_x, " ", draw.crop_y, " ", draw.final_width, " ", draw.final_height,
                    " ", draw.flip ? 1 : 0, " ", draw.rotate_deg, "\n");
  }
  // Relative names count from the folder of the list.
  char here[4096];
  if (::getcwd(here, sizeof(here)) == nullptr || ::symlink(here, scratch.file("here").c_str()) != 0)
    return io_error("cannot make a list of pictures for the peer");
  AERIE_RETURN_IF_ERROR(Env::real().write_file(scratch.file("cases.txt"), text));
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output,
                         run_process({python, script, "--cases", scratch.file("cases.txt"),
                                      "--seconds", str_cat(seconds)},
                                     {"OMP_NUM_THREADS=1"}));
  AERIE_ASSIGN_OR_RETURN(ordered_json line, json_line(output, script));
  PeerRow out;
  out.name = "Pillow";
  out.versions = versions_of(line);
  out.ms_per_sample = number_of(line, {"cpu_ms_per_image", "ms_per_image"}) *
                      static_cast<double>(cases.size()) /
                      static_cast<double>(std::max<uint64_t>(1, samples));
  out.line = std::move(line);
  return out;
}

// The devkit's masks at the same places.
Result<PeerRow> run_mask_peer(const std::string& folder, const std::string& python,
                              const std::string& root, const std::vector<MaskPose>& poses,
                              double seconds) {
  const std::string script = join_path(folder, "nuscenes_masks.py");
  const TempDir scratch;
  std::string text;
  for (const MaskPose& pose : poses)
    text += str_cat(pose.location, " ", pose.x, " ", pose.y, " ", pose.yaw, "\n");
  AERIE_RETURN_IF_ERROR(Env::real().write_file(scratch.file("poses.txt"), text));
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output,
                         run_process({python, script, "--root", root, "--poses",
                                      scratch.file("poses.txt"), "--seconds", str_cat(seconds)},
                                     {"OMP_NUM_THREADS=1"}));
  AERIE_ASSIGN_OR_RETURN(ordered_json line, json_line(output, script));
  PeerRow out;
  out.name = "nuscenes-devkit";
  for (const char* library : {"opencv", "shapely"})
    if (line.contains(library) && line[library].is_string())
      out.versions +=
          str_cat(out.versions.empty() ? "" : ", ", library, " ", line[library].get<std::string>());
  out.ms_per_sample = number_of(line, {"cpu_ms_per_sample", "ms_per_sample"});
  out.line = std::move(line);
  return out;
}

// A map with no samples around it, for maps of real record counts (bench/peers/stand_in_map.py).
struct MapRow {
  std::string location;
  double masks = 0.0;
  std::optional<PeerRow> peer;
};
Result<MapRow> measure_map_root(const BenchOptions& options, const std::string& python) {
  MapRow out;
  out.location = options.location;
  const std::string root = expand_user(options.maps_root);
  AERIE_ASSIGN_OR_RETURN(
      const auto map,
      nuscenes::MapExpansion::load(
          Env::real(), join_path(root, str_cat("maps/expansion/", options.location, ".json"))));
  std::vector<MaskPose> poses;
  AERIE_ASSIGN_OR_RETURN(out.masks, measure_map(*map, options.location, {}, options.stages, poses));
  if (!options.peer.empty()) {
    AERIE_ASSIGN_OR_RETURN(
        out.peer, run_mask_peer(options.peer, python, root, poses, 5 * options.stages.seconds));
  }
  return out;
}

ordered_json to_json(const ProfileRows& rows) {
  const StageTimes& s = rows.stages;
  ordered_json out{{"profile", s.profile},
                   {"image_size", {s.height, s.width}},
                   {"samples", s.samples},
                   {"pictures", s.pictures},
                   {"picture_bytes", s.picture_bytes},
                   {"stages_cpu_ms",
                    {{"read", s.read},
                     {"decode", s.decode},
                     {"resize", s.resize},
                     {"rotate", s.rotate},
                     {"masks", s.masks},
                     {"assemble", s.assemble},
                     {"images_exact", s.images},
                     {"images_scaled", s.scaled},
                     {"sample", s.sample}}}};
  out["loader"] = ordered_json::array();
  for (const LoaderRow& row : rows.loaders)
    out["loader"].push_back({{"workers", row.workers},
                             {"decode", row.decode},
                             {"samples_per_s", row.samples_per_s},
                             {"samples_per_cpu_s", row.samples_per_cpu_s},
                             {"cpu_percent", row.cpu_percent},
                             {"first_batch_s", row.first_batch_s},
                             {"memory_limit_bytes", row.memory_limit},
                             {"peak_rss_bytes", row.peak_rss},
                             {"bad_samples", row.bad},
                             {"limit", row.limit}});
  ordered_json ratios{{"scaled_over_exact", s.images / std::max(1e-9, s.scaled)}};
  out["peers"] = ordered_json::array();
  for (const auto& peer : {rows.images, rows.masks})
    if (peer)
      out["peers"].push_back(
          {{"name", peer->name}, {"cpu_ms_per_sample", peer->ms_per_sample}, {"line", peer->line}});
  if (rows.images) ratios["images"] = rows.images->ms_per_sample / std::max(1e-9, s.images);
  if (rows.masks) ratios["masks"] = rows.masks->ms_per_sample / std::max(1e-9, s.masks);
  if (rows.images && rows.masks)
    ratios["images_and_masks"] = (rows.images->ms_per_sample + rows.masks->ms_per_sample) /
                                 std::max(1e-9, s.images + s.masks);
  out["ratios"] = ratios;
  return out;
}

void print_text(const ProfileRows& rows) {
  const StageTimes& s = rows.stages;
  std::printf("profile %s, %d x %d: %llu samples, %llu pictures of %s\n", s.profile.c_str(),
              s.height, s.width, static_cast<unsigned long long>(s.samples),
              static_cast<unsigned long long>(s.pictures), human_bytes(s.picture_bytes).c_str());
  std::printf("  %-24s %12s %8s\n", "stage, one core", "CPU ms", "share");
  const std::pair<const char*, double> stages[] = {{"read", s.read},     {"decode", s.decode},
                                                   {"resize", s.resize}, {"rotate", s.rotate},
                                                   {"masks", s.masks},   {"assemble", s.assemble}};
  for (const auto& [name, ms] : stages)
    std::printf("  %-24s %12.3f %7.1f%%\n", name, ms, 100 * ms / std::max(1e-9, s.sample));
  std::printf("  %-24s %12.3f          %.1f samples/s\n", "sample", s.sample,
              1e3 / std::max(1e-9, s.sample));
  std::printf("  %-24s %12.3f\n", "images, exact", s.images);
  std::printf("  %-24s %12.3f          %.2fx exact\n", "images, scaled", s.scaled,
              s.images / std::max(1e-9, s.scaled));
  for (const LoaderRow& row : rows.loaders)
    std::printf(
        "  %2d workers, %s: %.1f samples/s, %.1f per CPU second, CPU %.0f%%, first batch after "
        "%.2f s, peak RSS %s (limit of the loader %s), limit: %s\n",
        row.workers, row.decode.c_str(), row.samples_per_s, row.samples_per_cpu_s, row.cpu_percent,
        row.first_batch_s, human_bytes(static_cast<double>(row.peak_rss)).c_str(),
        human_bytes(static_cast<double>(row.memory_limit)).c_str(), row.limit.c_str());
  if (rows.images)
    std::printf("  %-24s %12.3f          images are %.2fx as fast (%s)\n",
                rows.images->name.c_str(), rows.images->ms_per_sample,
                rows.images->ms_per_sample / std::max(1e-9, s.images),
                printable(rows.images->versions).c_str());
  if (rows.masks)
    std::printf("  %-24s %12.3f          masks are %.0fx as fast (%s)\n", rows.masks->name.c_str(),
                rows.masks->ms_per_sample, rows.masks->ms_per_sample / std::max(1e-9, s.masks),
                printable(rows.masks->versions).c_str());
  if (rows.images && rows.masks)
    std::printf("  %-24s %12.3f          images and masks are %.2fx as fast\n", "both",
                rows.images->ms_per_sample + rows.masks->ms_per_sample,
                (rows.images->ms_per_sample + rows.masks->ms_per_sample) /
                    std::max(1e-9, s.images + s.masks));
}

Result<std::vector<int64_t>> worker_counts(const std::string& list) {
  std::vector<int64_t> out;
  for (const std::string& one : split(list, ',')) {
    if (one.empty()) continue;
    auto count = parse_int64(one, 0, 1024);
    if (!count.ok()) return count.status().with_context("--workers");
    out.push_back(*count);
  }
  return out;
}

}  // namespace

Status run_nuscenes_bench(const std::vector<std::string>& args) {
  CLI::App app(
      "What a sample costs on one core, stage by stage, at the picture sizes of the profiles; how\n"
      "many samples a second loaders deliver; with --peer Pillow and the nuscenes-devkit on the "
      "same\n"
      "files and draws, in the same run.",
      "aerie bench data --kind nuscenes");
  app.footer(
      "example: aerie data synth --kind nuscenes --out town\n"
      "         aerie bench data --kind nuscenes --root town --workers 1,8 --peer bench/peers\n\n"
      "AERIE_PYTHON is the peers' interpreter (default python3).");
  NuscenesInput input;
  input.add_options(app);
  BenchOptions options;
  options.profiles = "bf,seed";
  options.workers = "1";
  app.add_option("--profiles", options.profiles,
                 "list with commas; --profile or --config: that one")
      ->capture_default_str();
  app.add_option("--seconds", options.loader_seconds, "of every number of workers")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--stage-seconds", options.stages.seconds, "of every stage")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--samples", options.stages.samples, "samples that stages are measured on")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option("--workers", options.workers, "threads of the loader, a list as 1,8; empty: none")
      ->capture_default_str();
  app.add_option("--maps-root,--maps_root", options.maps_root,
                 "also draw masks at random places of a map below this folder "
                 "(bench/peers/stand_in_map.py makes one with real record counts)");
  app.add_option("--location", options.location, "the map of --maps-root")->capture_default_str();
  app.add_option("--peer", options.peer, "folder of nuscenes_images.py and nuscenes_masks.py");
  app.add_flag("--json", options.json, "machine-readable output");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  const SignalCatcher signals;
  AERIE_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, worker_counts(options.workers));
  std::vector<std::string> profiles = split(options.profiles, ',');
  if (!input.profile.empty()) profiles = {input.profile};
  if (!input.config_file.empty() && input.profile.empty()) profiles = {""};
  const char* const named = std::getenv("AERIE_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  ordered_json all{{"cpu", cpu_name()}, {"cores", cpu_count()}};
  all["profiles"] = ordered_json::array();
  for (const std::string& profile : profiles) {
    input.profile = profile;
    AERIE_ASSIGN_OR_RETURN(const NuscenesParts parts, read_nuscenes_input(input, "train"));
    NuscenesDataset::Options open;
    open.quiet = options.json;
    open.seed = parts.aerie.seed;
    DataConfig config = parts.parts[0].config;
    ProfileRows rows;
    std::vector<PeerCase> cases;
    std::vector<MaskPose> poses;
    std::string root;
    options.stages.seed = parts.aerie.seed;
    {
      // All cameras, each sample once: what stages and peers compare.
      DataConfig plain = config;
      plain.num_cameras = 0;
      plain.sampler.type = nuscenes::SamplerType::kRandom;
      AERIE_ASSIGN_OR_RETURN(const auto dataset, NuscenesDataset::open(plain, open));
      AERIE_ASSIGN_OR_RETURN(rows.stages, measure_stages(*dataset, options.stages, cases, poses));
      root = std::string(dataset->index().root());
      if (plain.gt.task != nuscenes::GtTaskChoice::kMap) poses.clear();
      rows.stages.profile = profile.empty() ? "of the file" : profile;
    }
    for (const int64_t workers : counts) {
      if (caught_signal() != 0) break;
      DataConfig own = config;
      own.num_workers = workers;
      if (workers == 0) {
        own.prefetch_factor.reset();
        own.persistent_workers = false;
      }
      AERIE_ASSIGN_OR_RETURN(const auto dataset, NuscenesDataset::open(own, open));
      AERIE_ASSIGN_OR_RETURN(LoaderRow row,
                             measure_loader(dataset, parts.aerie, options.loader_seconds));
      row.profile = rows.stages.profile;
      rows.loaders.push_back(std::move(row));
    }
    if (!options.peer.empty() && caught_signal() == 0) {
      AERIE_ASSIGN_OR_RETURN(rows.images,
                             run_image_peer(options.peer, python, cases, rows.stages.samples,
                                            3 * options.stages.seconds));
      if (!poses.empty()) {
        AERIE_ASSIGN_OR_RETURN(rows.masks, run_mask_peer(options.peer, python, root, poses,
                                                         3 * options.stages.seconds));
      }
    }
    if (options.json)
      all["profiles"].push_back(to_json(rows));
    else
      print_text(rows);
  }
  if (!options.maps_root.empty() && caught_signal() == 0) {
    AERIE_ASSIGN_OR_RETURN(const MapRow row, measure_map_root(options, python));
    const double ratio = row.peer ? row.peer->ms_per_sample / std::max(1e-9, row.masks) : 0.0;
    if (options.json) {
      all["map"] = {{"location", row.location}, {"masks_cpu_ms", row.masks}};
      if (row.peer) {
        all["map"]["peer"] = {{"cpu_ms_per_sample", row.peer->ms_per_sample},
                              {"line", row.peer->line}};
        all["map"]["ratio"] = ratio;
      }
    } else {
      std::printf("map %s: masks %.3f CPU ms a sample", printable(row.location).c_str(), row.masks);
      if (row.peer)
        std::printf("; nuscenes-devkit %.2f, %.0fx (%s)", row.peer->ms_per_sample, ratio,
                    printable(row.peer->versions).c_str());
      std::printf("\n");
    }
  }
  if (options.json) print_document(all);
  return ok_status();
}

}  // namespace aerie::tools
