#include "aerie/data/nuscenes/pack/picture_packer.h"

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/pack/picture_key.h"
#include "aerie/data/pack/pack_store.h"
#include "aerie/data/pack/pack_writer.h"
#include "aerie/image/jpeg.h"

namespace aerie::nuscenes {
namespace {

constexpr uint64_t kMaxPicture = uint64_t{32} << 20;
constexpr size_t kBadListed = 100;

struct Picture {
  data::PackItem item;
  Status bad;
  bool reused = false;
};

// Decoders that threads take and give back.
class Readers {
 public:
  std::unique_ptr<image::JpegReader> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<image::JpegReader>();
    auto out = std::move(free_.back());
    free_.pop_back();
    return out;
  }
  void give(std::unique_ptr<image::JpegReader> reader) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(reader));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<image::JpegReader>> free_;
};

Status check_picture(std::span<const uint8_t> bytes, bool decode, Readers& readers) {
  auto reader = readers.take();
  const auto info = reader->open(bytes);
  Status status = info.status();
  if (status.ok() && decode)
    status = reader->for_rows(0, info->height, 1, [](const uint8_t* const*, int) {});
  readers.give(std::move(reader));
  return status;
}

// A pack is a folder of its own, so that it can be moved and removed without the data set.
Status check_out_dir(const NuscenesIndex& index, const std::string& out_dir) {
  namespace fs = std::filesystem;
  std::error_code code;
  const auto whole = [&](const fs::path& path) {
    const fs::path out = fs::weakly_canonical(path, code);
    const fs::path plain = code ? fs::absolute(path, code).lexically_normal() : out;
    return plain.has_filename() ? plain : plain.parent_path();
  };
  const fs::path root = whole(std::string(index.root())), out = whole(out_dir);
  const fs::path inside = out.lexically_relative(root);
  const std::string first = inside.empty() ? "" : inside.begin()->string();
  if (first != "." && first != "samples" && first != "sweeps" && first != "maps" &&
      first != index.version())
    return ok_status();
  return invalid_argument(str_cat("the pack would lie among the files of the data set: ", out_dir))
      .with_hint(str_cat("give it a folder of its own, such as ", (root / "pack").string()));
}

class Packer {
 public:
  Packer(const PicturePackOptions& options, const PicturePackHooks& hooks)
      : options_(options),
        hooks_(hooks),
        env_(options.env != nullptr ? *options.env : Env::real()),
        index_(*options.index),
        pool_({.name = "pack", .num_threads = std::max(1, options.workers)}) {}

  Result<PicturePackReport> run() {
    AERIE_RETURN_IF_ERROR(check_out_dir(index_, options_.out_dir));
    data::PackSet::Options open;
    open.settings = std::string(kPicturePackSettings);
    open.env = &env_;
    AERIE_ASSIGN_OR_RETURN(there_, data::PackSet::open(options_.out_dir, open));
    data::PackWriterOptions write;
    write.dir = options_.out_dir;
    write.encoding = data::PackEncoding::kBytes;
    write.sample_rate = 0;
    write.settings = open.settings;
    write.shard_bytes = options_.shard_bytes;
    write.env = &env_;
    AERIE_ASSIGN_OR_RETURN(const auto writer, data::PackWriter::create(write));
    total_ = uint64_t{options_.samples.size()} * kNumCameras;
    if (hooks_.on_start) hooks_.on_start(total_);
    // Pictures are read side by side, a block at a time, and written in order.
    const uint64_t most = std::clamp<uint64_t>(8 * static_cast<uint64_t>(options_.workers), 8, 256);
    std::vector<Picture> block;
    for (uint64_t first = 0; first < total_; first += most) {
      if (hooks_.stop && hooks_.stop()) {
        AERIE_RETURN_IF_ERROR(writer->finish());
        return cancelled("stopped; what was packed stays, and the same command goes on from there");
      }
      const size_t count = std::min<uint64_t>(most, total_ - first);
      block.clear();
      block.resize(count);
      AERIE_RETURN_IF_ERROR(
          pool_.parallel_for(count, [&](size_t i) { return read(first + i, block[i]); }));
      for (const Picture& picture : block) AERIE_RETURN_IF_ERROR(add(picture, *writer));
      if (hooks_.on_pictures) hooks_.on_pictures(count);
    }
    AERIE_RETURN_IF_ERROR(writer->finish());
    return report_;
  }

 private:
  // An error is the machine's; what is wrong with the picture is kept in it.
  Status read(uint64_t number, Picture& out) {
    const uint32_t sample = options_.samples[number / kNumCameras];
    const int camera = static_cast<int>(number % kNumCameras);
    const Token token = index_.sample(sample).token;
    const data::PackKey key = picture_key(token, kCameras[camera]);
    const auto packed = there_->find(key);
    if (!index_.has_camera(sample, camera)) {
      out.reused = packed.has_value();
      if (!packed)
        out.bad = data_error(str_cat("sample ", to_string(token), " has no ", kCameras[camera]));
      return ok_status();
    }
    const CameraFrame frame = index_.camera(sample, camera);
    const std::string path = index_.path(frame);
    const Status status = retry_passing(RetryPolicy(), [&]() -> Status {
      const auto stat = env_.stat(path);
      if (!stat.ok()) {
        // Gone since it was packed: the pack is all there is.
        if (packed && !is_passing(stat.status())) {
          out.reused = true;
          return ok_status();
        }
        return stat.status();
      }
      const data::PackSourceStamp stamp{stat->size, stat->mtime_ns};
      if (packed && there_->entry(*packed).source == stamp) {
        out.reused = true;
        return ok_status();
      }
      if (stat->size > kMaxPicture)
        return data_error(str_cat("has ", human_bytes(static_cast<double>(stat->size))))
            .with_context(path);
      AERIE_ASSIGN_OR_RETURN(const auto file, env_.open_random_access(path));
      std::vector<uint8_t> bytes(stat->size);
      AERIE_RETURN_IF_ERROR(file->read_exact_at(0, bytes.data(), bytes.size()));
      if (Status bad = check_picture(bytes, options_.decode, readers_); !bad.ok())
        return std::move(bad).with_context(path);
      out.item = data::bytes_pack_item(key, std::string(frame.filename), std::move(bytes), stamp);
      return ok_status();
    });
    if (is_passing(status)) return status;
    out.bad = status;
    return ok_status();
  }

  Status add(const Picture& picture, data::PackWriter& writer) {
    if (picture.reused) {
      ++report_.num_reused;
      return ok_status();
    }
    if (picture.bad.ok()) {
      AERIE_RETURN_IF_ERROR(writer.append(picture.item));
      ++report_.num_packed;
      report_.bytes += picture.item.bytes.size();
      return ok_status();
    }
    ++report_.num_bad;
    if (report_.bad.size() < kBadListed) report_.bad.push_back(picture.bad.to_string());
    if (static_cast<double>(report_.num_bad) >
        options_.max_bad_fraction * static_cast<double>(total_)) {
      std::vector<std::string> shown(
          report_.bad.begin(),
          report_.bad.begin() + static_cast<ptrdiff_t>(std::min<size_t>(5, report_.bad.size())));
      return data_error(str_cat("more than ", options_.max_bad_fraction,
                                " of all pictures cannot be read: ", join(shown, "; ")))
          .with_hint("repair them, or raise --max_bad_fraction");
    }
    return ok_status();
  }

  const PicturePackOptions& options_;
  const PicturePackHooks& hooks_;
  Env& env_;
  const NuscenesIndex& index_;
  ThreadPool pool_;
  Readers readers_;
  std::shared_ptr<const data::PackSet> there_;
  uint64_t total_ = 0;
  PicturePackReport report_;
};

}  // namespace

Result<PicturePackReport> pack_pictures(const PicturePackOptions& options,
                                        const PicturePackHooks& hooks) {
  return Packer(options, hooks).run();
}

}  // namespace aerie::nuscenes
