#include "fixture.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/kernels/types.h"

namespace aerie::bev::parity {
namespace {

using Json = nlohmann::json;

template <typename T>
std::vector<double> widened(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return std::vector<double>(values.begin(), values.end());
}

std::vector<double> widened_halves(const std::string& bytes) {
  std::vector<double> out(bytes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    kernels::Half half;
    static_assert(sizeof half == 2);
    std::memcpy(&half, bytes.data() + 2 * i, 2);
    out[i] = static_cast<double>(kernels::to_float(half));
  }
  return out;
}

Bound bound_of(const Json& json) {
  return {json.at(0).get<double>(), json.at(1).get<double>(), json.at(2).get<double>()};
}

}  // namespace

Fixture::Fixture(const std::string& path) : path_(path) {
  auto archive = archive::read_safetensors(Env::real(), path);
  if (!archive.ok()) throw std::runtime_error(archive.status().to_string());
  archive_ = std::move(archive).value();
}

const archive::TensorInfo& Fixture::info(const std::string& name) const {
  const archive::TensorInfo* found = archive_.find(name);
  if (found == nullptr) throw std::runtime_error("there is no tensor '" + name + "'");
  return *found;
}

const std::string& Fixture::text(const std::string& name) const {
  const auto found = archive_.text_metadata().find(name);
  if (found == archive_.text_metadata().end())
    throw std::runtime_error("the metadata has no '" + name + "'");
  return found->second;
}

std::vector<std::string> Fixture::names(const std::string& prefix) const {
  std::vector<std::string> out;
  for (const auto& tensor : archive_.tensors())
    if (tensor.name.rfind(prefix, 0) == 0) out.push_back(tensor.name);
  return out;
}

std::vector<std::string> Fixture::cases() const {
  std::vector<std::string> out;
  for (const auto& tensor : archive_.tensors()) {
    const size_t slash = tensor.name.find('/');
    if (slash == std::string::npos) continue;
    const std::string name = tensor.name.substr(0, slash);
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  return out;
}

std::vector<int64_t> Fixture::shape(const std::string& name) const {
  return info(name).shape;
}

std::vector<double> Fixture::numbers(const std::string& name) const {
  const archive::TensorInfo& tensor = info(name);
  auto read = archive_.read(tensor);
  if (!read.ok()) throw std::runtime_error(read.status().to_string());
  switch (tensor.dtype) {
    case Dtype::kF32:
      return widened<float>(*read);
    case Dtype::kF64:
      return widened<double>(*read);
    case Dtype::kF16:
      return widened_halves(*read);
    case Dtype::kI64:
      return widened<int64_t>(*read);
    case Dtype::kI32:
      return widened<int32_t>(*read);
    case Dtype::kU8:
    case Dtype::kBool:
      return widened<uint8_t>(*read);
    default:
      throw std::runtime_error("'" + name + "' has a type that no fixture has");
  }
}

std::vector<float> Fixture::floats(const std::string& name) const {
  const Dtype dtype = info(name).dtype;
  if (dtype != Dtype::kF32 && dtype != Dtype::kF16)
    throw std::runtime_error("'" + name + "' is not float32");
  const std::vector<double> wide = numbers(name);
  return std::vector<float>(wide.begin(), wide.end());
}

std::vector<int64_t> Fixture::integers(const std::string& name) const {
  const Dtype dtype = info(name).dtype;
  if (dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kF64)
    throw std::runtime_error("'" + name + "' is not of integers");
  const std::vector<double> wide = numbers(name);
  return std::vector<int64_t>(wide.begin(), wide.end());
}

std::vector<uint8_t> Fixture::bytes(const std::string& name) const {
  const Dtype dtype = info(name).dtype;
  if (dtype != Dtype::kU8 && dtype != Dtype::kBool)
    throw std::runtime_error("'" + name + "' is not of bytes");
  const std::vector<double> wide = numbers(name);
  return std::vector<uint8_t>(wide.begin(), wide.end());
}

double Fixture::scalar(const std::string& name) const {
  const std::vector<double> values = numbers(name);
  if (values.size() != 1) throw std::runtime_error("'" + name + "' is not a single number");
  return values[0];
}

BevConfig config_of(const Fixture& fixture) {
  const Json json = Json::parse(fixture.text("config"));
  BevConfig c;
  c.profile = json.at("name").get<std::string>();
  c.image_height = json.at("image").at(0).get<int64_t>();
  c.image_width = json.at("image").at(1).get<int64_t>();
  c.cameras = json.at("cams").get<int64_t>();
  c.swin.embed_dims = json.at("embed").get<int64_t>();
  c.swin.depths = json.at("depths").get<std::vector<int64_t>>();
  c.swin.num_heads = json.at("heads").get<std::vector<int64_t>>();
  c.swin.window_size = json.at("window").get<int64_t>();
  c.swin.mlp_ratio = json.at("mlp_ratio").get<int64_t>();
  c.swin.drop_path_rate = json.at("drop_path").get<double>();
  c.swin.zero_shift_single_window = json.at("zero_shift_single_window").get<bool>();
  c.neck_channels = json.at("neck").get<int64_t>();
  c.first_stage = json.at("first_stage").get<int64_t>();
  c.dbound = bound_of(json.at("dbound"));
  c.context_channels = json.at("context").get<int64_t>();
  c.xbound = bound_of(json.at("xbound"));
  c.ybound = bound_of(json.at("ybound"));
  c.zbound = bound_of(json.at("zbound"));
  c.rounding = json.at("rounding") == "floor" ? VoxelRounding::kFloor : VoxelRounding::kTrunc;
  c.depth_float32 = json.value("vtransform_fp32", false);
  c.downsample = json.at("downsample").get<int64_t>();
  c.network = json.at("bev") == "fpn" ? BevNetwork::kFpn : BevNetwork::kEncode;
  c.encode_width = json.at("bev_width").get<int64_t>();
  c.decoder.clear();
  for (const Json& stage : json.at("dec"))
    c.decoder.push_back({stage.at(0).get<int64_t>(), stage.at(1).get<int64_t>()});
  c.decoder_channels = json.at("dec_out").get<int64_t>();
  c.output_x = bound_of(json.at("out_x"));
  c.output_y = bound_of(json.at("out_y"));
  c.classes = json.at("classes").get<std::vector<std::string>>();
  c.loss = json.at("loss") == "xent" ? MapLoss::kCrossEntropy : MapLoss::kFocal;
  if (fixture.has_text("loss") && fixture.text("loss").find("vehicle") != std::string::npos)
    c.loss = MapLoss::kVehicle;
  const Status valid = validate(c);
  if (!valid.ok()) throw std::runtime_error("config: " + valid.to_string());
  return c;
}

std::vector<GeometryProfile> geometry_profiles(const Fixture& fixture) {
  std::vector<GeometryProfile> out;
  const Json profiles = Json::parse(fixture.text("profiles"));
  for (const auto& [name, json] : profiles.items()) {
    GeometryProfile p;
    p.name = name;
    p.image = json.at("image").get<std::vector<int64_t>>();
    p.feature = json.at("feature").get<std::vector<int64_t>>();
    p.n = json.at("n").get<std::vector<int64_t>>();
    for (const Json& bound : json.at("bounds")) p.bounds.push_back(bound_of(bound));
    p.dbound = bound_of(json.at("dbound"));
    p.points = json.at("points").get<int64_t>();
    p.kept_trunc = json.at("kept_trunc").get<int64_t>();
    p.kept_floor = json.at("kept_floor").get<int64_t>();
    if (p.image.size() != 2 || p.feature.size() != 2 || p.n.size() != 3 || p.bounds.size() != 3)
      throw std::runtime_error("profile '" + name + "' is incomplete");
    out.push_back(std::move(p));
  }
  return out;
}

std::vector<std::string> string_list(const std::string& json) {
  return Json::parse(json).get<std::vector<std::string>>();
}

std::vector<std::pair<std::string, double>> number_table(const std::string& json) {
  std::vector<std::pair<std::string, double>> out;
  const Json table = Json::parse(json);
  for (const auto& [name, value] : table.items()) out.emplace_back(name, value.get<double>());
  return out;
}

}  // namespace aerie::bev::parity
