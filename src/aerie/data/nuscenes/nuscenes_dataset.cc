#include "aerie/data/nuscenes/nuscenes_dataset.h"

#include <algorithm>
#include <future>
#include <map>

#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/pack/picture_key.h"
#include "aerie/data/nuscenes/tables/cbgs.h"

namespace aerie::nuscenes {
namespace {

constexpr data::PackLocation kNotPacked{UINT32_MAX, UINT32_MAX};

// Once at the start instead of once a sample.
Status check_layers(const MapExpansion& map, const GroundTruthOptions& gt) {
  for (const std::string& name : gt.classes)
    for (const MapLayer layer : map_layers_of(name))
      if (!map.has(layer))
        return data_error(str_cat("has no layer ", aerie::nuscenes::name_of(layer),
                                  ", which class ", name, " is drawn from"))
            .with_context(map.path())
            .with_hint("use the map expansion 1.3, or leave the class out of gt.classes");
  return ok_status();
}

}  // namespace

std::vector<MapLayer> map_layers_of(const std::string& name) {
  if (name == "divider") return {MapLayer::kRoadDivider, MapLayer::kLaneDivider};
  if (name == "drivable_area*") return {MapLayer::kRoadSegment, MapLayer::kLane};
  const std::optional<MapLayer> layer = map_layer_from(name);
  return layer ? std::vector<MapLayer>{*layer} : std::vector<MapLayer>{};
}

Result<std::string> map_expansion_path(Env& env, const NuscenesIndex& index,
                                       std::string_view location) {
  // Locations come from a table: a name, never a way out of the folder.
  if (location.empty() || location.find('/') != std::string_view::npos || location[0] == '.')
    return data_error(str_cat("'", location, "' is no name of a location"))
        .with_context(join_path(index.tables_dir(), "log.json"));
  const std::string name = str_cat("maps/expansion/", location, ".json");
  const std::string in_root = join_path(index.root(), name);
  for (const std::string& path : {in_root, join_path(parent_path(index.tables_dir()), name),
                                  join_path(index.tables_dir(), name)})
    if (env.exists(path)) return path;
  return not_found(str_cat("there is no map of ", location, ": ", in_root))
      .with_hint("unpack the map expansion (nuScenes-map-expansion-v1.3) into maps of the root");
}

Status NuscenesDataset::load_maps(unsigned threads) {
  scene_map_.assign(index_->num_scenes(), -1);
  if (rules_.gt.task != MaskTask::kMap) return ok_status();
  std::map<std::string, int, std::less<>> numbers;
  std::vector<std::string> locations;
  for (const uint32_t sample : split_.samples) {
    const uint32_t scene = index_->sample(sample).scene;
    if (scene_map_[scene] >= 0) continue;
    const std::string location(index_->scene(scene).location);
    const auto [found, added] = numbers.emplace(location, static_cast<int>(locations.size()));
    if (added) locations.push_back(location);
    scene_map_[scene] = found->second;
  }
  const auto load =
      [this](const std::string& location) -> Result<std::shared_ptr<const MapExpansion>> {
    AERIE_ASSIGN_OR_RETURN(const std::string path, map_expansion_path(*env_, *index_, location));
    AERIE_ASSIGN_OR_RETURN(auto map, MapExpansion::load(*env_, path));
    AERIE_RETURN_IF_ERROR(check_layers(*map, rules_.gt));
    return map;
  };
  std::vector<std::future<Result<std::shared_ptr<const MapExpansion>>>> loading;
  for (const std::string& location : locations)
    loading.push_back(
        std::async(threads > 1 ? std::launch::async : std::launch::deferred, load, location));
  Status first_error;
  for (auto& one : loading) {
    auto map = one.get();
    if (map.ok())
      maps_.push_back(std::move(map).value());
    else if (first_error.ok())
      first_error = map.status();
  }
  return first_error;
}

Status NuscenesDataset::open_pack(bool quiet) {
  if (config_.pack_dir.empty()) return ok_status();
  data::PackSet::Options options;
  options.settings = std::string(kPicturePackSettings);
  options.env = env_;
  AERIE_ASSIGN_OR_RETURN(pack_, data::PackSet::open(expand_user(config_.pack_dir), options));
  if (pack_->size() == 0)
    return not_found(str_cat("there is no pack in ", config_.pack_dir))
        .with_hint("`aerie data pack --kind nuscenes` fills it; or leave the key out");
  packed_.assign(size_t{index_->num_samples()} * kNumCameras, kNotPacked);
  for (const uint32_t sample : split_.samples)
    for (const int camera : rules_.cameras) {
      const auto at = pack_->find(picture_key(index_->sample(sample).token, kCameras[camera]));
      if (!at) continue;
      packed_[size_t{sample} * kNumCameras + camera] = *at;
      ++num_packed_;
    }
  const uint64_t all = uint64_t{split_.samples.size()} * rules_.cameras.size();
  if (num_packed_ < all && !quiet)
    log_warn("data", config_.pack_dir, " has ", num_packed_, " of ", all,
             " pictures; the others are read from their files: run `aerie data pack` again");
  return ok_status();
}

// Entries number the augmentations: the same sample comes with others every time.
Status NuscenesDataset::repeat_entries() {
  constexpr uint64_t kMostEntries = uint64_t{1} << 28;
  const auto times = static_cast<uint64_t>(config_.sampler.repeat);
  const size_t once = entries_.size();
  if (times * once > kMostEntries)
    return invalid_argument(str_cat(config_node(), ".sampler.repeat: ", once, " samples ", times,
                                    " times are more than ", kMostEntries));
  entries_.reserve(once * times);
  for (size_t i = once; i < once * times; ++i) entries_.push_back(entries_[i - once]);
  return ok_status();
}

void NuscenesDataset::measure_pictures() {
  for (const uint32_t sample : split_.samples)
    for (const int camera : rules_.cameras) {
      if (!index_->has_camera(sample, camera)) continue;
      const CameraFrame frame = index_->camera(sample, camera);
      max_width_ = std::max(max_width_, frame.width);
      max_height_ = std::max(max_height_, frame.height);
    }
}

Result<std::shared_ptr<const NuscenesDataset>> NuscenesDataset::open(const DataConfig& config,
                                                                     const Options& options) {
  std::shared_ptr<NuscenesDataset> out(new NuscenesDataset());
  NuscenesDataset& set = *out;
  set.config_ = config;
  set.env_ = options.env != nullptr ? options.env : &Env::real();
  if (config.root.empty())
    return invalid_argument(str_cat(set.config_node(), ".root is not given"))
        .with_hint("the folder that holds samples, maps and v1.0-...");
  AERIE_ASSIGN_OR_RETURN(set.rules_, read_rules(config));
  AERIE_RETURN_IF_ERROR(GroundTruthMaker::make(set.rules_.gt).status());
  const unsigned threads =
      options.threads > 0 ? options.threads : std::min(4u, static_cast<unsigned>(cpu_count()));
  set.index_ = options.index;
  if (set.index_ == nullptr) {
    NuscenesIndex::Options open;
    open.root = expand_user(config.root);
    open.version = config.version;
    open.cache_dir = expand_user(config.cache_dir);
    open.quiet = options.quiet;
    open.threads = threads;
    // Pictures of a pack need not be there.
    open.find_files = config.pack_dir.empty();
    AERIE_ASSIGN_OR_RETURN(set.index_, NuscenesIndex::open(*set.env_, open));
  }
  SplitOptions split;
  split.split = config.split_name();
  if (const auto own = config.splits.find(split.split); own != config.splits.end())
    split.file = expand_user(own->second);
  split.order = config.order == OrderChoice::kScene ? SampleOrder::kScene : SampleOrder::kTimestamp;
  split.need_files = !options.keep_missing && config.pack_dir.empty();
  split.quiet = options.quiet;
  AERIE_ASSIGN_OR_RETURN(set.split_, samples_of_split(*set.env_, *set.index_, split));
  if (config.sampler.type == SamplerType::kCbgs) {
    AERIE_ASSIGN_OR_RETURN(set.entries_,
                           cbgs_entries(*set.index_, set.split_.samples, options.seed));
    if (set.entries_.empty())
      return data_error(str_cat("class-balanced sampling leaves nothing of the ",
                                set.split_.samples.size(), " samples of ", set.split_.name))
          .with_hint("it is for larger sets; use sampler.type=random");
  } else {
    set.entries_ = set.split_.samples;
  }
  AERIE_RETURN_IF_ERROR(set.repeat_entries());
  set.measure_pictures();
  if (set.max_width_ > 0)
    AERIE_RETURN_IF_ERROR(validate(set.rules_.image, set.max_width_, set.max_height_));
  AERIE_RETURN_IF_ERROR(set.load_maps(threads));
  AERIE_RETURN_IF_ERROR(set.open_pack(options.quiet));
  // What comes in which order: enough to tell another list of samples.
  XxHash64 hash;
  for (const uint32_t sample : set.entries_) {
    const Token token = set.index_->sample(sample).token;
    hash.update(&token, sizeof(token));
  }
  set.fingerprint_ = hash.digest();
  auto samples = std::make_shared<data::SampleSet>();
  samples->groups.push_back({0, static_cast<uint32_t>(set.entries_.size()), {}});
  set.set_ = std::move(samples);
  return std::shared_ptr<const NuscenesDataset>(std::move(out));
}

const MapExpansion* NuscenesDataset::map_of(uint32_t sample) const {
  const int number = scene_map_[index_->sample(sample).scene];
  return number < 0 || maps_.empty() ? nullptr : maps_[static_cast<size_t>(number)].get();
}

std::string NuscenesDataset::name_of(uint32_t sample) const {
  const SampleInfo info = index_->sample(sample);
  return str_cat(index_->scene(info.scene).name, " sample ", to_string(info.token));
}

std::string NuscenesDataset::describe(uint64_t entry) const {
  return name_of(sample_of(entry));
}

std::string NuscenesDataset::example_path() const {
  if (pack_ != nullptr) return pack_->shard(0).path();
  const uint32_t sample = sample_of(0);
  const int camera = rules_.cameras[0];
  if (!index_->has_camera(sample, camera)) return std::string(index_->root());
  return index_->path(index_->camera(sample, camera));
}

std::string NuscenesDataset::storage_advice(const data::StorageInfo& storage) const {
  if (storage.rotational && pack_ == nullptr)
    return "copy the data to an SSD, or pack it (`aerie data pack --kind nuscenes`)";
  return "copy the data to a local SSD";
}

std::string NuscenesDataset::config_node() const {
  switch (config_.role) {
    case DataRole::kTrain:
      return "model.train_ds";
    case DataRole::kValidation:
      return "model.validation_ds";
    case DataRole::kTest:
      break;
  }
  return "model.test_ds";
}

std::string NuscenesDataset::what_may_differ() const {
  return "other tables, another split or order, another sampler, or pictures that have come or "
         "gone";
}

std::optional<data::PackLocation> NuscenesDataset::packed(uint32_t sample, int camera) const {
  if (packed_.empty()) return std::nullopt;
  const data::PackLocation at = packed_[size_t{sample} * kNumCameras + camera];
  if (at == kNotPacked) return std::nullopt;
  return at;
}

}  // namespace aerie::nuscenes
