#include "aerie/models/bev/weights/swin_names.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/kernels/types.h"

namespace aerie::bev {
namespace {

using archive::TensorArchive;
using archive::TensorInfo;

constexpr std::string_view kBackbones[] = {"encoders.camera.backbone.", "backbone."};

// Parts from `first` on.
std::string joined(const std::vector<std::string>& parts, size_t first) {
  return join({parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end()}, ".");
}

// A number of a stage or block; nullopt where the part is none.
std::optional<int64_t> number(const std::string& part) {
  if (part.empty() || part.size() > 3 || part.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(part);
}

// What follows blocks.B. in the official names, by ours.
std::optional<std::string> block_part(const std::string& rest, SwinDialect dialect) {
  if (starts_with(rest, "norm1.") || starts_with(rest, "norm2.")) return rest;
  if (rest == "attn.relative_position_bias_table" || starts_with(rest, "attn.qkv.") ||
      starts_with(rest, "attn.proj."))
    return "attn.w_msa." + rest.substr(5);
  const bool torchvision = dialect == SwinDialect::kTorchvision;
  const std::string first = torchvision ? "mlp.0." : "mlp.fc1.";
  const std::string second = torchvision ? "mlp.3." : "mlp.fc2.";
  if (starts_with(rest, first)) return "ffn.layers.0.0." + rest.substr(first.size());
  if (starts_with(rest, second)) return "ffn.layers.1." + rest.substr(second.size());
  return std::nullopt;
}

bool is_merge_part(const std::string& rest) {
  return rest == "norm.weight" || rest == "norm.bias" || rest == "reduction.weight";
}

std::optional<std::string> merge_name(int64_t stage, const std::string& rest) {
  if (stage < 0 || !is_merge_part(rest)) return std::nullopt;
  return str_cat("stages.", stage, ".downsample.", rest);
}

std::optional<std::string> from_layers(const std::vector<std::string>& parts, SwinDialect dialect) {
  if (parts[0] == "patch_embed" && parts.size() == 3) {
    if (parts[1] == "proj") return "patch_embed.projection." + parts[2];
    if (parts[1] == "norm") return "patch_embed.norm." + parts[2];
  }
  if (parts[0] != "layers" || parts.size() < 4) return std::nullopt;
  const auto stage = number(parts[1]);
  if (!stage) return std::nullopt;
  if (parts[2] == "downsample")
    return merge_name(*stage - (dialect == SwinDialect::kTimm ? 1 : 0), joined(parts, 3));
  const auto block = number(parts[3]);
  if (parts[2] != "blocks" || !block || parts.size() < 5) return std::nullopt;
  const auto part = block_part(joined(parts, 4), dialect);
  if (!part) return std::nullopt;
  return str_cat("stages.", *stage, ".blocks.", *block, ".", *part);
}

std::optional<std::string> from_features(const std::vector<std::string>& parts) {
  if (parts[0] != "features" || parts.size() < 4) return std::nullopt;
  const auto at = number(parts[1]);
  if (!at) return std::nullopt;
  if (*at == 0) {
    if (parts[2] == "0") return "patch_embed.projection." + parts[3];
    if (parts[2] == "2") return "patch_embed.norm." + parts[3];
    return std::nullopt;
  }
  if (*at % 2 == 0) return merge_name(*at / 2 - 1, joined(parts, 2));
  const auto block = number(parts[2]);
  if (!block) return std::nullopt;
  const auto part = block_part(joined(parts, 3), SwinDialect::kTorchvision);
  if (!part) return std::nullopt;
  return str_cat("stages.", *at / 2, ".blocks.", *block, ".", *part);
}

std::optional<std::string> from_mmdet(const std::string& name,
                                      const std::vector<std::string>& parts) {
  if (parts.back() == "relative_position_index" || parts.back() == "attn_mask") return std::nullopt;
  const bool norm = parts.size() == 2 && parts[0].size() == 5 && starts_with(parts[0], "norm") &&
                    number(parts[0].substr(4));
  if (parts[0] == "stages" || parts[0] == "patch_embed" || norm) return name;
  return std::nullopt;
}

std::string without_module(std::string name) {
  while (starts_with(name, "module.")) name.erase(0, 7);
  return name;
}

Result<SwinDialect> dialect_of(const std::vector<std::string>& names, const std::string& file) {
  bool layers = false, merged_at_first = false;
  for (const std::string& name : names) {
    if (starts_with(name, "stages.")) return SwinDialect::kMmdet;
    if (starts_with(name, "features.")) return SwinDialect::kTorchvision;
    layers = layers || starts_with(name, "layers.");
    merged_at_first = merged_at_first || starts_with(name, "layers.0.downsample.");
  }
  if (layers) return merged_at_first ? SwinDialect::kOfficial : SwinDialect::kTimm;
  return data_error(
             "holds no weights of a Swin transformer under names of mmdet, the official "
             "code, timm or torchvision")
      .with_context(file)
      .with_hint("`aerie inspect` shows what it holds");
}

double cubic(double x) {
  constexpr double a = -0.75;
  x = std::abs(x);
  if (x <= 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
  return 0.0;
}

}  // namespace

const char* dialect_name(SwinDialect dialect) {
  switch (dialect) {
    case SwinDialect::kMmdet:
      return "mmdet";
    case SwinDialect::kOfficial:
      return "official";
    case SwinDialect::kTimm:
      return "timm";
    case SwinDialect::kTorchvision:
      return "torchvision";
  }
  return "?";
}

Result<SwinMapping> map_swin_names(const TensorArchive& archive) {
  // Where a file holds more than a backbone, what stands below it.
  std::string_view prefix;
  for (const std::string_view candidate : kBackbones) {
    const auto below = [&](const TensorInfo& info) {
      return starts_with(without_module(info.name), candidate);
    };
    if (prefix.empty() && std::any_of(archive.tensors().begin(), archive.tensors().end(), below))
      prefix = candidate;
  }
  std::vector<std::string> names;
  std::vector<const TensorInfo*> infos;
  SwinMapping out;
  for (const TensorInfo& info : archive.tensors()) {
    const std::string name = without_module(info.name);
    if (!starts_with(name, prefix)) {
      out.unused.push_back(info.name);
      continue;
    }
    names.push_back(name.substr(prefix.size()));
    infos.push_back(&info);
  }
  AERIE_ASSIGN_OR_RETURN(out.dialect, dialect_of(names, archive.name()));
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<std::string> parts = split(names[i], '.');
    std::optional<std::string> ours;
    if (out.dialect == SwinDialect::kMmdet) ours = from_mmdet(names[i], parts);
    if (out.dialect == SwinDialect::kTorchvision) ours = from_features(parts);
    if (out.dialect == SwinDialect::kOfficial || out.dialect == SwinDialect::kTimm)
      ours = from_layers(parts, out.dialect);
    if (!ours) {
      out.unused.push_back(infos[i]->name);
      continue;
    }
    if (!seen.insert(*ours).second)
      return data_error(str_cat("two of its tensors are ", *ours)).with_context(archive.name());
    SwinTensor tensor;
    tensor.name = *ours;
    tensor.source = infos[i];
    tensor.merged =
        out.dialect != SwinDialect::kMmdet && ours->find(".downsample.") != std::string::npos;
    tensor.table = ends_with(*ours, ".relative_position_bias_table");
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

Result<std::vector<float>> read_floats(const TensorArchive& archive, const TensorInfo& info) {
  AERIE_ASSIGN_OR_RETURN(const std::string bytes, archive.read(info));
  std::vector<float> out(static_cast<size_t>(info.numel()));
  for (size_t i = 0; i < out.size(); ++i) {
    const char* at = bytes.data() + i * dtype_size(info.dtype);
    uint16_t bits = 0;
    double wide = 0.0;
    switch (info.dtype) {
      case Dtype::kF32:
        std::memcpy(&out[i], at, sizeof(float));
        break;
      case Dtype::kF64:
        std::memcpy(&wide, at, sizeof wide);
        out[i] = static_cast<float>(wide);
        break;
      case Dtype::kF16:
        std::memcpy(&bits, at, sizeof bits);
        out[i] = kernels::half_bits_to_float(bits);
        break;
      case Dtype::kBF16:
        std::memcpy(&bits, at, sizeof bits);
        out[i] = kernels::bf16_bits_to_float(bits);
        break;
      default:
        return data_error(str_cat(printable(info.name), " is not of floating-point numbers"))
            .with_context(archive.name());
    }
  }
  return out;
}

std::vector<float> merged_to_mmdet(const std::vector<float>& values, int64_t width) {
  const auto c = static_cast<size_t>(width / 4);
  constexpr size_t kBlock[4] = {0, 2, 1, 3};  // of neighbour 2*row + column
  std::vector<float> out(values.size());
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(width))
    for (size_t i = 0; i < c; ++i)
      for (size_t k = 0; k < 4; ++k) out[row + 4 * i + k] = values[row + kBlock[k] * c + i];
  return out;
}

std::vector<float> resized_table(const std::vector<float>& table, int64_t side, int64_t heads,
                                 int64_t new_side) {
  // Weights of the old rows for every new one.
  std::vector<double> weights(static_cast<size_t>(new_side * side), 0.0);
  const double scale = static_cast<double>(side) / static_cast<double>(new_side);
  for (int64_t o = 0; o < new_side; ++o) {
    const double place = (static_cast<double>(o) + 0.5) * scale - 0.5;
    const auto first = static_cast<int64_t>(std::floor(place));
    for (int64_t k = first - 1; k <= first + 2; ++k) {
      const int64_t from = std::clamp<int64_t>(k, 0, side - 1);
      weights[static_cast<size_t>(o * side + from)] += cubic(place - static_cast<double>(k));
    }
  }
  std::vector<float> out(static_cast<size_t>(new_side * new_side * heads));
  for (int64_t y = 0; y < new_side; ++y)
    for (int64_t x = 0; x < new_side; ++x)
      for (int64_t h = 0; h < heads; ++h) {
        double sum = 0.0;
        for (int64_t i = 0; i < side; ++i)
          for (int64_t j = 0; j < side; ++j)
            sum += weights[static_cast<size_t>(y * side + i)] *
                   weights[static_cast<size_t>(x * side + j)] *
                   static_cast<double>(table[static_cast<size_t>((i * side + j) * heads + h)]);
        out[static_cast<size_t>((y * new_side + x) * heads + h)] = static_cast<float>(sum);
      }
  return out;
}

Result<std::vector<float>> read_swin_tensor(const TensorArchive& archive, const SwinTensor& tensor,
                                            const std::vector<int64_t>& shape) {
  const TensorInfo& info = *tensor.source;
  const auto refused = [&] {
    return data_error(str_cat(printable(info.name), " has the shape ",
                              archive::shape_text(info.shape), ", the model's ", tensor.name, " ",
                              archive::shape_text(shape)))
        .with_context(archive.name());
  };
  // Before anything is read: tables of a window that no model has would be large.
  constexpr int64_t kMaxSide = 511;
  int64_t side = 0, new_side = 0;
  if (info.shape != shape) {
    if (!tensor.table || info.shape.size() != 2 || shape.size() != 2 || info.shape[1] != shape[1])
      return refused();
    side = std::llround(std::sqrt(static_cast<double>(info.shape[0])));
    new_side = std::llround(std::sqrt(static_cast<double>(shape[0])));
    if (side * side != info.shape[0] || new_side * new_side != shape[0] || side % 2 == 0 ||
        side > kMaxSide)
      return refused();
  }
  AERIE_ASSIGN_OR_RETURN(std::vector<float> values, read_floats(archive, info));
  if (side != 0) return resized_table(values, side, shape[1], new_side);
  if (tensor.merged) return merged_to_mmdet(values, shape.back());
  return values;
}

}  // namespace aerie::bev
