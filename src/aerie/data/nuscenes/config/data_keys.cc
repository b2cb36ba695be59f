// The rows of `model.<ds>` of nuScenes data.
#include "aerie/data/nuscenes/config/data_keys.h"

#include "aerie/base/strings.h"

namespace aerie::nuscenes {
namespace {

using config::FieldKeys;
using config::NodeReader;
using config::Value;
using config::works;

constexpr std::string_view kByProfile = "null: by the profile";

void read_workers(const NodeReader& node, std::string_view key, DataConfig& out) {
  if (const Value* workers = node.find(key); workers && workers->is_string())
    out.num_workers = DataConfig::kAutoWorkers;
  else
    node.read(key, out.num_workers);
}

void read_batch_size(const NodeReader& node, std::string_view key, DataConfig& out) {
  const Value* size = node.find(key);
  out.auto_batch_size = size != nullptr && size->is_string();
  if (size != nullptr && !size->is_string()) node.read(key, out.batch_size);
}

// A number of cameras, or their names.
void read_cameras(const NodeReader& node, std::string_view key, DataConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  out.cameras.clear();
  out.num_cameras = 0;
  if (value->is_number())
    node.read(key, out.num_cameras);
  else
    node.read(key, out.cameras);
}

// Name to file, in any spelling of names.
void read_splits(const NodeReader& node, std::string_view key, DataConfig& out) {
  const NodeReader all = node.child(key);
  if (!all.is_map()) return;
  out.splits.clear();
  for (const config::MapEntry& entry : all.node()->as_map()) {
    std::string file;
    all.read(entry.key, file);
    if (!file.empty()) out.splits[entry.key] = file;
  }
}

void read_data_root(const NodeReader& node, std::string_view key, DataConfig& out) {
  if (!node.given("root")) node.read(key, out.root);
}

const FieldKeys<ImageConfig>& image_keys() {
  using T = ImageConfig;
  static const FieldKeys<T> table("model.<ds>.image", [](FieldKeys<T>& keys) {
    keys.key("size", &T::size,
             works("Height and width of the pictures that the model sees.")
                 .range("[1,8192]")
                 .nullable()
                 .no_default()
                 .note(kByProfile));
    keys.key("resize_lim", &T::resize_lim,
             works("Training draws the resize factor between these two.")
                 .range("(0,4]")
                 .nullable()
                 .no_default()
                 .note(kByProfile));
    keys.key("bot_pct_lim", &T::bot_pct_lim,
             works("Share of the resized picture that is cut off below; drawn between these two.")
                 .range("[0,1)")
                 .nullable()
                 .no_default()
                 .note(kByProfile));
    keys.key("rot_lim", &T::rot_lim,
             works("Rotation in degrees, drawn between these two.")
                 .range("[-180,180]")
                 .nullable()
                 .no_default()
                 .note(kByProfile));
    keys.key("rand_flip", &T::rand_flip,
             works("Mirror every second picture.").nullable().no_default().note(kByProfile));
    keys.choice("test_rule", &T::test_rule,
                {{"bf", TestRuleChoice::kBf}, {"lss", TestRuleChoice::kLss}},
                works("How pictures are resized without augmentation: `bf` takes the middle of "
                      "resize_lim, `lss` what covers the size.")
                    .nullable()
                    .no_default());
    keys.key("augment", &T::augment, works("Draw the values above; null: in train_ds only."));
  });
  return table;
}

const FieldKeys<BevConfig>& bev_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.<ds>.bev", [](FieldKeys<T>& keys) {
    keys.key("scale_lim", &T::scale_lim,
             works("The view from above is scaled by a factor between these two.").range("(0,10]"));
    keys.key("rot_lim", &T::rot_lim,
             works("... and rotated by radians between these two.").range("[-3.2,3.2]"));
    keys.key("trans_std", &T::trans_std,
             works("... and shifted by a normal draw an axis, metres.").range("[0,100]"));
    keys.key("flip_horizontal", &T::flip_horizontal, works("Mirror y every second time."));
    keys.key("flip_vertical", &T::flip_vertical, works("Mirror x every second time."));
    keys.key("augment", &T::augment,
             works("Draw the values above; null: in train_ds only (profile lss: never)."));
  });
  return table;
}

const FieldKeys<GtConfig>& gt_keys() {
  using T = GtConfig;
  static const FieldKeys<T> table("model.<ds>.gt", [](FieldKeys<T>& keys) {
    keys.choice(
        "compat", &T::compat,
        {{"devkit", GtCompatChoice::kDevkit}, {"exact", GtCompatChoice::kExact}},
        works("`devkit` draws masks as nuscenes-devkit and OpenCV do; `exact` asks every cell's "
              "centre."));
    keys.key(
        "scale_patch", &T::scale_patch,
        works("The piece of map follows the scale of the BEV augmentation; false: as BEVFusion, "
              "which scales features and not labels."));
    keys.choice("task", &T::task,
                {{"map", GtTaskChoice::kMap},
                 {"vehicle", GtTaskChoice::kVehicle},
                 {"car", GtTaskChoice::kCar}},
                works("What is drawn: classes of the map, or boxes of vehicles or cars.")
                    .nullable()
                    .no_default()
                    .note("null: map, profile lss: vehicle"));
    keys.key(
        "classes", &T::classes,
        works("Map classes in the order of the mask: drivable_area, ped_crossing, walkway, "
              "stop_line, carpark_area, divider, drivable_area* (road_segment or lane), or one of "
              "the other layers.")
            .absent_is_null());
    keys.key("xbound", &T::xbound, works("From, to and size of a cell, metres."));
    keys.key("ybound", &T::ybound, works("From, to and size of a cell, metres."));
  });
  return table;
}

const FieldKeys<SamplerConfig>& sampler_keys() {
  using T = SamplerConfig;
  static const FieldKeys<T> table("model.<ds>.sampler", [](FieldKeys<T>& keys) {
    keys.choice("type", &T::type, {{"random", SamplerType::kRandom}, {"cbgs", SamplerType::kCbgs}},
                works("`cbgs` repeats samples so that rare classes come more often.")
                    .nullable()
                    .no_default()
                    .note("null: random, profile bf: cbgs in train_ds"));
    keys.key("repeat", &T::repeat,
             works("How often an epoch goes through the samples, augmented anew every time "
                   "(mm's RepeatDataset).")
                 .range("[1,1000000]"));
  });
  return table;
}

}  // namespace

const FieldKeys<DataConfig>& data_fields() {
  using T = DataConfig;
  static const FieldKeys<T> table("model.<ds>", [](FieldKeys<T>& keys) {
    keys.key("root", &T::root, works("Folder with samples, maps and the tables' folder."));
    keys.row("data_root", "str|null", "null", works("The same, as mm-style files spell it."),
             read_data_root);
    keys.key("version", &T::version,
             works("v1.0-mini, v1.0-trainval, v1.0-test or another folder of tables; null: the one "
                   "there is."));
    keys.key("cache_dir", &T::cache_dir,
             works("Folder of the tables' index; null: the user's cache folder."));
    keys.key("pack", &T::pack_dir,
             works("Folder that `aerie data pack --kind nuscenes` has filled; null: pictures are "
                   "read from their files."));
    keys.key("split", &T::split,
             works("train, val, test, mini_train, mini_val, train_detect, train_track, or a name "
                   "of `splits`; null: as the node is called."));
    keys.row("splits", "map|null", "null",
             works("Own splits: a name and a file with a scene's name a line."), read_splits);
    keys.row("splits.*", "str|null", "", works("File of scene names."));
    keys.choice("order", &T::order,
                {{"timestamp", OrderChoice::kTimestamp}, {"scene", OrderChoice::kScene}},
                works("Order before shuffling: by time, or scene by scene.")
                    .nullable()
                    .no_default()
                    .note("null: timestamp, profile lss: scene"));
    keys.child("sampler", &T::sampler, sampler_keys());
    keys.row("batch_size", "int|str|null", "",
             works("Samples of a batch and device. train_ds: `auto` finds the largest that leaves "
                   "10 to 20 % of the GPU's memory free, on a CPU the one past which throughput no "
                   "longer grows; a resumed run keeps it.")
                 .range("[1,4096]")
                 .choices("auto")
                 .note("null: 4, validation_ds and test_ds: 1"),
             read_batch_size);
    keys.key(
        "shuffle", &T::shuffle,
        works("Another order every epoch.").nullable().no_default().note("null: in train_ds only"));
    keys.key("drop_last", &T::drop_last,
             works("Leave out a last batch that is not full.")
                 .nullable()
                 .no_default()
                 .note("null: in train_ds only"));
    keys.row(
        "num_workers", "int|str", "auto",
        works("Threads that decode; `auto` finds the number.").range("[0,1024]").choices("auto"),
        read_workers);
    keys.key("prefetch_factor", &T::prefetch_factor,
             works("Batches each worker prepares ahead; null: 2. Must be null with 0 workers.")
                 .range("[1,1024]"));
    keys.key("persistent_workers", &T::persistent_workers,
             works("Threads always live on between epochs; must be false with 0 workers, as in "
                   "torch."));
    keys.key("pin_memory", &T::pin_memory,
             works("Batches in page-locked memory, copied while the GPU works."));
    keys.choice("decode", &T::decode,
                {{"auto", DecodeChoice::kAuto},
                 {"exact", DecodeChoice::kExact},
                 {"scaled", DecodeChoice::kScaled}},
                works("How JPEGs become pixels. `exact`: as Pillow. `scaled`: training may decode "
                      "at 1/2 or 1/4 where the resize factor allows it. `auto`: exact. Evaluation "
                      "is always exact.")
                    .refuses("gpu",
                             "decoding on the GPU is reserved for later; use auto, exact or "
                             "scaled"));
    keys.row("cameras", "int|list[str]|null", "null",
             works("Names of cameras in the order of the batch, or how many of the six a sample "
                   "draws in training; null: all six (profile lss: 5 in training).")
                 .range("[1,6]"),
             read_cameras);
    keys.key("shuffle_cameras", &T::shuffle_cameras,
             works("A control: the pictures of a sample change places, drawn anew for every sample "
                   "and epoch, while calibrations stay. A model that uses geometry must get much "
                   "worse."));
    keys.choice("reference_frame", &T::reference_frame,
                {{"lidar", ReferenceFrameChoice::kLidar}, {"ego", ReferenceFrameChoice::kEgo}},
                works("Where the origin of the view from above lies.")
                    .nullable()
                    .no_default()
                    .note("null: lidar, profile lss: ego"));
    keys.key("motion_compensation", &T::motion_compensation,
             works("Cameras are placed by where the car was when each took its picture; false: as "
                   "LSS.")
                 .nullable()
                 .no_default()
                 .note("null: true, profile lss: false"));
    keys.child("image", &T::image, image_keys());
    keys.child("bev", &T::bev, bev_keys());
    keys.child("gt", &T::gt, gt_keys());
    keys.choice("on_bad_sample", &T::on_bad_sample,
                {{"skip", OnBadSample::kSkip}, {"fail", OnBadSample::kFail}},
                works("A sample whose pictures cannot be read: leave it out, or stop."));
    keys.key("max_bad_fraction", &T::max_bad_fraction,
             works("Stop when more than this share of the samples was bad.").range("[0,1]"));
  });
  return table;
}

}  // namespace aerie::nuscenes
