#include "aerie/models/nest/features/clips.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/nn/torch_error.h"

namespace aerie::features {

Result<at::Device> open_device(const std::string& name) {
  nn::prepare_cpu_runtime();
  const bool has_gpu = !device::driver().gpus.empty();
  if (name == "cpu" || (name == "auto" && !has_gpu)) return at::Device(at::kCPU);
  try {
    const at::Device device(name == "auto" ? "cuda" : name);
    if (device.is_cuda()) {
      if (!has_gpu)
        return invalid_argument("the driver shows no GPU on this machine")
            .with_context(str_cat("--device ", name))
            .with_hint("--device cpu or auto");
      AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
      const auto count = static_cast<int>(device::driver().gpus.size());
      if (device.index() >= count)
        return invalid_argument(str_cat("there is no GPU ", static_cast<int>(device.index()),
                                        ", this machine has ", count))
            .with_context("--device");
      return at::Device(at::kCUDA, std::max<c10::DeviceIndex>(0, device.index()));
    }
    if (device.is_cpu()) return device;
  } catch (const std::exception&) {
    // Not the name of any device.
  }
  return invalid_argument(str_cat("'", name, "' is no device aerie computes on"))
      .with_context("--device")
      .with_hint("cpu, cuda, cuda:0 or auto");
}

Result<std::vector<float>> read_clip(Env& env, const std::vector<std::string>& paths, bool is_list,
                                     int64_t sample_rate, const audio::ChannelSelector& channels) {
  audio::ReadOptions options;
  options.sample_rate = static_cast<int>(sample_rate);
  options.channels = channels;
  options.env = &env;
  options.strict = true;
  audio::AudioReader reader(options);
  const auto view = is_list ? reader.read_file_list(paths) : reader.read_file(paths.front());
  if (!view.ok()) return view.status();
  if (view->channels != 1)
    return data_error(str_cat(view->channels, " channels, one is needed"))
        .with_context(paths.front())
        .with_hint("--channel_selector average, or the number of a channel");
  if (view->frames == 0) return data_error("no samples").with_context(paths.front());
  std::vector<float> out(static_cast<size_t>(view->frames));
  view->copy_to(out.data());
  return out;
}

Result<ClipBatch> make_clip_batch(std::span<const std::vector<float>* const> clips,
                                  at::Device device) {
  try {
    size_t longest = 1;
    for (const auto* clip : clips) longest = std::max(longest, clip->size());
    const auto rows = static_cast<int64_t>(clips.size());
    const auto width = static_cast<int64_t>(longest);
    at::Tensor audio = at::zeros({rows, width}, at::kFloat);
    at::Tensor lengths = at::empty({rows}, at::kLong);
    for (size_t i = 0; i < clips.size(); ++i) {
      std::copy(clips[i]->begin(), clips[i]->end(), audio.data_ptr<float>() + i * longest);
      lengths.data_ptr<int64_t>()[i] = static_cast<int64_t>(clips[i]->size());
    }
    return ClipBatch{audio.to(device), lengths.to(device)};
  } catch (const std::exception& error) {
    return out_of_memory(nn::torch_message(error))
        .with_hint("a smaller batch size, or shorter recordings");
  }
}

}  // namespace aerie::features
