#include "aerie/data/nuscenes/tables/nuscenes_index.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "aerie/base/cache_dir.h"
#include "aerie/base/check.h"
#include "aerie/base/file_lock.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/data_root.h"
#include "aerie/data/nuscenes/tables/file_lookup.h"
#include "aerie/data/nuscenes/tables/index_file.h"
#include "aerie/data/nuscenes/tables/table_reader.h"

namespace aerie::nuscenes {

namespace {

using index_format::kNumChannels;

// Longer than reading takes; a process that was stopped with the lock must not stop all others.
constexpr double kLockPatienceS = 600.0;
constexpr size_t kExamples = 3;

Quaternion quaternion_of(const double (&q)[4]) {
  return {q[0], q[1], q[2], q[3]};
}
Vec3 vec_of(const double (&v)[3]) {
  return {v[0], v[1], v[2]};
}

std::string absolute(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return out;
}

// "<cache>/nusc_<version>_<hash>", without its ending. The hash is of the tables' folder and of the
// format: versions of aerie that write different ones do not take turns in rewriting it.
std::string cache_stem(const std::string& cache_dir, const DataRoot& where) {
  std::string name = where.version;
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '-' || c == '_';
    if (!plain) c = '_';
  }
  const uint64_t hash = xxhash64(str_cat(absolute(where.tables_dir), "\n", index_format::kVersion));
  return join_path(cache_dir, str_cat("nusc_", name.substr(0, 64), "_", hex64(hash)));
}

// Train and validation data open the same tables: what is wrong with them is said once.
void warn_once(const std::string& message) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(message).second) log_warn("data", message);
}

// Reads and writes the index of one version's tables.
class IndexCache {
 public:
  IndexCache(Env& env, const DataRoot& where, const NuscenesIndex::Options& options,
             unsigned threads)
      : env_(env), where_(where), quiet_(options.quiet), threads_(threads) {
    if (!options.use_cache) return;
    const std::string dir =
        options.cache_dir.empty() ? user_cache_dir() : expand_user(options.cache_dir);
    if (!dir.empty()) stem_ = cache_stem(dir, where);
  }

  Result<IndexFile> get(bool& from_cache) {
    from_cache = true;
    AERIE_ASSIGN_OR_RETURN(Sources sources, look_at_sources(env_, where_.tables_dir));
    if (Result<IndexFile> index = load(sources); index.ok()) return index;
    std::optional<FileLock> lock;
    if (may_write_ && !stem_.empty()) {
      lock = take_lock();
      // Whoever had the lock may have written what is wanted.
      if (Result<IndexFile> index = load(sources); index.ok()) return index;
    }
    from_cache = false;
    return make(sources);
  }

  // Where the list of files is kept; empty: nowhere.
  std::string files_path() const {
    return stem_.empty() || !may_write_ ? std::string() : stem_ + ".files";
  }

 private:
  std::string index_path() const { return stem_ + ".idx"; }

  Result<IndexFile> load(const Sources& sources) {
    if (stem_.empty()) return unavailable("no cache");
    Result<IndexFile> index = map_index(env_, index_path(), threads_);
    if (!index.ok()) {
      const StatusCode code = index.status().code();
      if (code == StatusCode::kUnsupported) {
        may_write_ = false;
        if (!quiet_)
          log_warn("data", index_path(), ": ", index.status().to_string(),
                   "; it is left alone and the tables are read");
      } else if (code == StatusCode::kDataError) {
        log_debug("data", index_path(), ": ", index.status().to_string(), "; made again");
      }
      return index.status();
    }
    Sources known{};
    std::copy(index->sources.begin(), index->sources.end(), known.begin());
    if (!same_sources(known, sources)) return unavailable("the tables have changed");
    return index;
  }

  std::optional<FileLock> take_lock() {
    if (&env_ != &Env::real()) return std::nullopt;  // locks are the operating system's
    if (!env_.create_dirs(parent_path(stem_)).ok()) return std::nullopt;
    Result<FileLock> lock = FileLock::acquire(stem_ + ".lock", 0.5);
    if (!lock.ok() && lock.status().code() == StatusCode::kUnavailable) {
      if (!quiet_)
        log_info("data", "another process reads ", where_.tables_dir, "; waiting for its index");
      lock = FileLock::acquire(stem_ + ".lock", kLockPatienceS);
    }
    if (!lock.ok()) return std::nullopt;  // the file is replaced in one step, with or without it
    return std::move(lock).value();
  }

  Result<IndexFile> make(const Sources& sources) {
    uint64_t total = 0;
    for (const auto& source : sources) total += source.size;
    IndexContent content;
    {
      Progress progress(
          {.label = str_cat("tables of ", where_.version),
           .total = total,
           .unit = "bytes",
           .show = quiet_ ? ProgressOptions::Show::kNever : ProgressOptions::Show::kAuto});
      AERIE_ASSIGN_OR_RETURN(content, read_tables(env_, where_.tables_dir, threads_,
                                                  [&](uint64_t bytes) { progress.add(bytes); }));
    }
    AERIE_ASSIGN_OR_RETURN(const Sources after, look_at_sources(env_, where_.tables_dir));
    if (!same_sources(sources, after))
      return data_error("the tables changed while they were read").with_context(where_.tables_dir);
    if (!quiet_) {
      for (const std::string& warning : content.warnings) log_warn("data", warning);
    }
    if (!stem_.empty() && may_write_) {
      const Status written = write_index(env_, index_path(), sources, content);
      if (written.ok()) {
        content = {};
        give_back_memory();
        Result<IndexFile> index = map_index(env_, index_path(), threads_);
        if (index.ok()) return index;
        // Somebody cleans the folder at this moment; the tables are still there.
        AERIE_ASSIGN_OR_RETURN(content, read_tables(env_, where_.tables_dir, threads_));
      } else {
        may_write_ = false;
        if (!quiet_)
          log_warn("data", "the index of ", where_.tables_dir, " is not kept, every start reads ",
                   "all tables: ", written.to_string());
      }
    }
    return index_in_memory(sources, content, threads_);
  }

  static void give_back_memory() {
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
  }

  Env& env_;
  const DataRoot& where_;
  const bool quiet_;
  const unsigned threads_;
  std::string stem_;
  bool may_write_ = true;
};

}  // namespace

struct NuscenesIndex::Columns {
  IndexFile index;
  FileLookup files;
  bool looked_up = false;
};

NuscenesIndex::NuscenesIndex() = default;
NuscenesIndex::~NuscenesIndex() = default;

Result<std::shared_ptr<const NuscenesIndex>> NuscenesIndex::open(Env& env, const Options& options) {
  AERIE_ASSIGN_OR_RETURN(const DataRoot where, find_data_root(env, options.root, options.version));
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const unsigned threads = options.threads > 0 ? options.threads : std::min(cores, 4u);
  IndexCache cache(env, where, options, threads);
  auto out = std::shared_ptr<NuscenesIndex>(new NuscenesIndex);
  out->columns_ = std::make_unique<Columns>();
  AERIE_ASSIGN_OR_RETURN(out->columns_->index, cache.get(out->from_cache_));
  out->root_ = where.root;
  out->version_ = where.version;
  out->tables_dir_ = where.tables_dir;
  out->fingerprint_ = out->columns_->index.fingerprint;
  if (options.find_files) out->find_files(env, cache.files_path());
  if (!options.quiet) out->log_files();
  return std::shared_ptr<const NuscenesIndex>(std::move(out));
}

void NuscenesIndex::find_files(Env& env, const std::string& kept_in) {
  const IndexFile& index = columns_->index;
  const auto name = [&](uint32_t number) -> std::string_view {
    const auto& frame =
        index.frames[size_t{number / kNumCameras} * kNumChannels + number % kNumCameras];
    return frame.exists != 0 ? index.text(frame.filename) : std::string_view();
  };
  const FileLookup::Names names{num_samples() * kNumCameras, name};
  Result<FileLookup> known = unavailable("no cache");
  if (!kept_in.empty()) known = FileLookup::load(env, kept_in, root_, fingerprint_, names);
  if (known.ok()) {
    columns_->files = std::move(known).value();
  } else {
    columns_->files = FileLookup::search(env, root_, names);
    if (!kept_in.empty() && !columns_->files.gave_up()) {
      const Status written = columns_->files.write(env, kept_in, root_, fingerprint_);
      if (!written.ok()) log_debug("data", "list of files not kept: ", written.to_string());
    }
  }
  columns_->looked_up = true;
  files_fingerprint_ = columns_->files.hash();
  files_.num_elsewhere = columns_->files.num_moved();
  for (uint32_t i = 0; i < names.count; ++i) {
    const std::string_view filename = name(i);
    if (filename.empty()) continue;
    ++files_.num_files;
    if (columns_->files.present(i)) continue;
    if (files_.num_missing++ < kExamples) files_.examples.emplace_back(filename);
  }
}

void NuscenesIndex::log_files() const {
  if (files_.num_elsewhere > 0)
    log_info("data", version_, ": ", files_.num_elsewhere, " of ", files_.num_files,
             " pictures are not where their filename says and were found by name below ", root_);
  if (files_.num_missing > 0)
    warn_once(str_cat(
        version_, ": ", files_.num_missing, " of ", files_.num_files,
        " pictures are missing below ", root_, " (for example ", join(files_.examples, ", "), ")",
        columns_->files.gave_up() ? "; not all folders were looked through: there are too many"
                                  : ""));
}

uint32_t NuscenesIndex::num_scenes() const {
  return static_cast<uint32_t>(columns_->index.scenes.size());
}

SceneInfo NuscenesIndex::scene(uint32_t scene) const {
  const IndexFile& index = columns_->index;
  const auto& record = index.scenes[scene];
  return {index.text(record.name),
          {record.token_hi, record.token_lo},
          index.text(record.location),
          record.first_sample,
          record.num_samples};
}

std::optional<uint32_t> NuscenesIndex::find_scene(std::string_view name) const {
  const IndexFile& index = columns_->index;
  for (uint32_t i = 0; i < num_scenes(); ++i) {
    if (index.text(index.scenes[i].name) == name) return i;
  }
  return std::nullopt;
}

uint32_t NuscenesIndex::num_samples() const {
  return static_cast<uint32_t>(columns_->index.samples.size());
}

SampleInfo NuscenesIndex::sample(uint32_t sample) const {
  const auto& record = columns_->index.samples[sample];
  return {{record.token_hi, record.token_lo}, record.timestamp_us, record.scene, record.table_row};
}

std::optional<uint32_t> NuscenesIndex::find_sample(const Token& token) const {
  const auto& samples = columns_->index.samples;
  for (uint32_t i = 0; i < samples.size(); ++i) {
    if (samples[i].token_hi == token.hi && samples[i].token_lo == token.lo) return i;
  }
  return std::nullopt;
}

bool NuscenesIndex::has_camera(uint32_t sample, int camera) const {
  return columns_->index.frames[size_t{sample} * kNumChannels + camera].exists != 0;
}

bool NuscenesIndex::has_lidar(uint32_t sample) const {
  return has_camera(sample, index_format::kLidar);
}

SensorFrame NuscenesIndex::frame(uint32_t sample, int channel) const {
  const IndexFile& index = columns_->index;
  const auto& record = index.frames[size_t{sample} * kNumChannels + channel];
  AERIE_CHECK(record.exists != 0, "sample ", sample, " has no frame of channel ", channel);
  const auto& calibration = index.calibrations[record.calibration];
  SensorFrame out;
  out.filename = index.text(record.filename);
  out.width = record.width;
  out.height = record.height;
  out.timestamp_us = record.timestamp_us;
  out.ego = {quaternion_of(record.rotation), vec_of(record.translation)};
  out.sensor = {quaternion_of(calibration.rotation), vec_of(calibration.translation)};
  std::copy(std::begin(calibration.intrinsic), std::end(calibration.intrinsic),
            out.intrinsic.m.begin());
  return out;
}

CameraFrame NuscenesIndex::camera(uint32_t sample, int camera) const {
  CameraFrame out = frame(sample, camera);
  out.present = true;
  if (columns_->looked_up) {
    const uint32_t number = sample * kNumCameras + static_cast<uint32_t>(camera);
    out.present = columns_->files.present(number);
    if (const std::string_view moved = columns_->files.moved_to(number); !moved.empty())
      out.filename = moved;
  }
  return out;
}

SensorFrame NuscenesIndex::lidar(uint32_t sample) const {
  return frame(sample, index_format::kLidar);
}

bool NuscenesIndex::is_complete(uint32_t sample) const {
  if (!has_lidar(sample)) return false;
  for (int c = 0; c < kNumCameras; ++c) {
    if (!has_camera(sample, c)) return false;
    if (columns_->looked_up &&
        !columns_->files.present(sample * kNumCameras + static_cast<uint32_t>(c)))
      return false;
  }
  return true;
}

std::string NuscenesIndex::path(const SensorFrame& frame) const {
  return join_path(root_, frame.filename);
}

NuscenesIndex::Boxes NuscenesIndex::boxes(uint32_t sample) const {
  const auto& record = columns_->index.samples[sample];
  return {*this, record.first_box, record.num_boxes};
}

uint64_t NuscenesIndex::num_boxes() const {
  return columns_->index.boxes.size();
}

Box NuscenesIndex::box(uint64_t number) const {
  const IndexFile& index = columns_->index;
  const auto& record = index.boxes[number];
  Box out;
  out.instance = {record.instance_hi, record.instance_lo};
  out.category = index.text(index.categories[record.category]);
  out.centre = vec_of(record.centre);
  out.size = vec_of(record.size);
  out.rotation = quaternion_of(record.rotation);
  out.num_lidar_pts = record.num_lidar_pts;
  out.num_radar_pts = record.num_radar_pts;
  out.visibility = record.visibility;
  return out;
}

}  // namespace aerie::nuscenes
