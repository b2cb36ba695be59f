#include "aerie/models/nest/features/extract.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/npy.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/models/nest/features/clips.h"
#include "aerie/models/nest/features/input_list.h"
#include "aerie/models/nest/restore.h"
#include "aerie/nn/torch_error.h"

namespace aerie::features {
namespace {

using Json = nlohmann::ordered_json;

// One recording on its way; the vector of them is fixed before any thread looks at it.
struct Item {
  size_t recording = 0;  // first one with this path
  std::vector<float> samples;
  at::Tensor values;  // [layers, d, frames]
  Status status;
  bool written = false;
};

class Extractor final {
 public:
  Extractor(const ExtractOptions& options, Env& env) : options_(options), env_(env) {}

  Status prepare() {
    AERIE_ASSIGN_OR_RETURN(channels_, audio::ChannelSelector::parse(options_.channel_selector));
    AERIE_ASSIGN_OR_RETURN(policy_, policy());
    AERIE_ASSIGN_OR_RETURN(device_, open_device(options_.device));
    AERIE_ASSIGN_OR_RETURN(list_, list_input(env_, options_.input, options_.type));
    if (list_.num_with_offset > 0)
      log_warn("features", list_.num_with_offset, " lines have an offset: whole files are read");
    ckpt::RestoreOptions restore;
    restore.config = options_.config;
    restore.device = device_;
    restore.averaged = options_.averaged;
    AERIE_ASSIGN_OR_RETURN(restored_, ckpt::restore_nest(env_, options_.model_path, restore));
    const config::ModelConfig& config = model().settings().model;
    sample_rate_ = config.sample_rate;
    AERIE_ASSIGN_OR_RETURN(layers_, parse_layers(options_.layers, config.encoder.n_layers));
    output_ = expand_user(options_.output);
    return env_.create_dirs(output_);
  }

  Result<ExtractReport> run() {
    stems_ = feature_stems(list_.recordings);
    item_of_.resize(list_.recordings.size());
    std::unordered_map<std::string, size_t> by_stem;
    for (size_t i = 0; i < stems_.size(); ++i) {
      const auto [entry, is_new] = by_stem.try_emplace(stems_[i], items_.size());
      if (is_new) items_.push_back({i, {}, {}, {}, false});
      item_of_[i] = entry->second;
    }
    AERIE_RETURN_IF_ERROR(work_through());
    ExtractReport report;
    AERIE_RETURN_IF_ERROR(write_manifest(report));
    report.num_recordings = list_.recordings.size();
    report.audio_s = audio_s_;
    report.num_layers = static_cast<int64_t>(layers_.size()) + options_.include_final_output;
    report.width = model().encoder().feat_out();
    for (const Item& item : items_) {
      if (item.written) ++report.num_files;
      if (!item.status.ok())
        report.bad.push_back({list_.recordings[item.recording].place, item.status});
    }
    return report;
  }

 private:
  const nest::NestModel& model() const { return *restored_.model; }

  Result<nn::DtypePolicy> policy() const {
    const bool half = options_.amp_dtype == "float16";
    if (!half && options_.amp_dtype != "bfloat16")
      return invalid_argument(str_cat("'", options_.amp_dtype, "' is not known"))
          .with_context("--amp_dtype")
          .with_hint("float16 or bfloat16");
    if (!options_.use_amp) return nn::DtypePolicy();
    return nn::DtypePolicy(half ? config::Precision::k16Mixed : config::Precision::kBf16Mixed);
  }

  size_t batch_end(size_t begin) const {
    return std::min(items_.size(), begin + static_cast<size_t>(options_.batch_size));
  }

  // While batch k is encoded, the threads read batch k+1 and write batch k-1.
  Status work_through() {
    Progress progress({.label = "features", .total = items_.size(), .unit = "files"});
    ThreadPool pool({.name = "features", .num_threads = static_cast<int>(options_.workers)});
    submit_reads(pool, 0, batch_end(0));
    AERIE_RETURN_IF_ERROR(pool.wait());
    size_t written = 0;
    for (size_t begin = 0; begin < items_.size(); begin = batch_end(begin)) {
      if (const int signal = caught_signal(); signal != 0)
        return cancelled(str_cat("stopped by ", signal_name(signal)));
      const size_t end = batch_end(begin);
      submit_reads(pool, end, batch_end(end));
      submit_writes(pool, written, begin, progress);
      written = begin;
      encode_batch(begin, end);
      AERIE_RETURN_IF_ERROR(pool.wait());
    }
    submit_writes(pool, written, items_.size(), progress);
    return pool.wait();
  }

  void submit_reads(ThreadPool& pool, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      pool.submit("reading audio", [this, i] {
        Item& item = items_[i];
        const Recording& recording = list_.recordings[item.recording];
        auto clip = read_clip(env_, recording.paths, recording.is_list, sample_rate_, channels_);
        if (clip.ok()) {
          item.samples = std::move(clip).value();
        } else {
          item.status = clip.status();
        }
        return ok_status();
      });
  }

  void submit_writes(ThreadPool& pool, size_t begin, size_t end, Progress& progress) {
    for (size_t i = begin; i < end; ++i) {
      if (!items_[i].status.ok()) {
        ++num_bad_;
        progress.set_note(str_cat(num_bad_, " bad"));
        progress.add();
        continue;
      }
      // A disk that refuses one file will refuse the next: that ends the run.
      pool.submit("writing features", [this, i, &progress]() -> Status {
        Item& item = items_[i];
        archive::OutTensor out;
        out.name = "array";
        out.shape = item.values.sizes().vec();
        out.data = item.values.const_data_ptr<float>();
        AERIE_RETURN_IF_ERROR(
            archive::write_npy(env_, join_path(output_, feature_name(item.recording)), out));
        item.values = at::Tensor();
        item.written = true;
        progress.add();
        return ok_status();
      });
    }
  }

  void encode_batch(size_t begin, size_t end) {
    std::vector<size_t> batch;
    for (size_t i = begin; i < end; ++i)
      if (items_[i].status.ok()) batch.push_back(i);
    if (batch.empty()) return;
    Status status = encode(batch);
    // Too much for the memory, or one that the encoder does not like: one by one.
    if (!status.ok() && batch.size() > 1) {
      for (const size_t i : batch) items_[i].status = encode({i});
    } else if (!status.ok()) {
      items_[batch[0]].status = std::move(status);
    }
    for (const size_t i : batch) {
      if (items_[i].status.ok())
        audio_s_ +=
            static_cast<double>(items_[i].samples.size()) / static_cast<double>(sample_rate_);
      items_[i].samples = {};
    }
  }

  Status encode(const std::vector<size_t>& batch) {
    std::vector<const std::vector<float>*> clips;
    for (const size_t i : batch) clips.push_back(&items_[i].samples);
    AERIE_ASSIGN_OR_RETURN(const ClipBatch tensors, make_clip_batch(clips, device_));
    AERIE_ASSIGN_OR_RETURN(nn::EncoderOutput encoded,
                           model().encode(tensors.audio, tensors.lengths, policy_, true));
    try {
      std::vector<at::Tensor> chosen;
      for (const int64_t layer : layers_)
        chosen.push_back(encoded.layers[static_cast<size_t>(layer)]);
      if (options_.include_final_output) chosen.push_back(encoded.encoded);
      const at::Tensor values = at::stack(chosen, 1).to(at::kCPU, at::kFloat);  // (B,L,d,T')
      const at::Tensor lengths = encoded.lengths.to(at::kCPU);
      for (size_t row = 0; row < batch.size(); ++row) {
        const auto r = static_cast<int64_t>(row);
        const int64_t frames =
            std::clamp<int64_t>(lengths.const_data_ptr<int64_t>()[row], 0, values.size(3));
        // A copy of its own: a view would keep the padded batch alive.
        const at::Tensor own = values[r].narrow(2, 0, frames).clone(at::MemoryFormat::Contiguous);
        Item& item = items_[batch[row]];
        if (own.isfinite().all().item<bool>()) {
          item.values = own;
        } else {
          item.status = data_error("the features are not finite")
                            .with_context(list_.recordings[item.recording].paths.front())
                            .with_hint("does the audio hold NaN or infinite samples?");
        }
      }
      return ok_status();
    } catch (const std::exception& error) {
      return internal_error(nn::torch_message(error)).with_context("feature extraction");
    }
  }

  std::string feature_name(size_t recording) const { return stems_[recording] + ".npy"; }

  Status write_manifest(ExtractReport& report) {
    std::string text;
    for (size_t i = 0; i < list_.recordings.size(); ++i) {
      const Recording& recording = list_.recordings[i];
      if (!items_[item_of_[i]].written) continue;
      Json line = Json::parse(recording.line, nullptr, /*allow_exceptions=*/false);
      if (!line.is_object())
        line = Json{{"audio_filepath", ""}, {"duration", nullptr}, {"text", "-"}};
      const Json path = recording.is_list ? Json(recording.paths) : Json(recording.paths.front());
      if (line.contains("audio_filename")) line["audio_filename"] = path;
      line["audio_filepath"] = path;
      line["feature_path"] = feature_name(i);  // beside this manifest: the folder may move
      text += line.dump(-1, ' ', false, Json::error_handler_t::replace);
      text += '\n';
    }
    report.manifest = join_path(output_, "features.json");
    return env_.atomic_replace(report.manifest, text);
  }

  const ExtractOptions& options_;
  Env& env_;
  audio::ChannelSelector channels_;
  nn::DtypePolicy policy_;
  at::Device device_ = at::kCPU;
  InputList list_;
  ckpt::RestoredModel restored_;
  int64_t sample_rate_ = 0;
  std::vector<int64_t> layers_;
  std::string output_;
  std::vector<std::string> stems_;  // per recording
  std::vector<size_t> item_of_;     // per recording
  std::vector<Item> items_;
  double audio_s_ = 0.0;
  uint64_t num_bad_ = 0;
};

}  // namespace

Result<ExtractReport> extract_features(const ExtractOptions& options, Env& env) {
  if (options.batch_size < 1 || options.batch_size > 65536)
    return invalid_argument(str_cat("--batch_size ", options.batch_size, " is not 1 to 65536"));
  if (options.workers < 0 || options.workers > 1024)
    return invalid_argument(str_cat("--workers ", options.workers, " is not 0 to 1024"));
  try {
    Extractor extractor(options, env);
    AERIE_RETURN_IF_ERROR(extractor.prepare());
    return extractor.run();
  } catch (const std::bad_alloc&) {
    return out_of_memory("no host memory left").with_hint("a smaller --batch_size");
  }
}

}  // namespace aerie::features
