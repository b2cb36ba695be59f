// A fixture file: named arrays and a few texts of JSON. What is not as expected throws
// std::runtime_error with the name.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/safetensors.h"
#include "aerie/models/bev/config/bev_config.h"

namespace aerie::bev::parity {

class Fixture {
 public:
  explicit Fixture(const std::string& path);

  const std::string& path() const { return path_; }
  bool has(const std::string& name) const { return archive_.find(name) != nullptr; }
  bool has_text(const std::string& name) const { return archive_.text_metadata().count(name) > 0; }
  const std::string& text(const std::string& name) const;
  // Names in the order of the file, those that start with `prefix`.
  std::vector<std::string> names(const std::string& prefix = "") const;
  // First parts of names with a '/', each once: the cases of a file.
  std::vector<std::string> cases() const;

  std::vector<int64_t> shape(const std::string& name) const;
  // Any dtype, widened.
  std::vector<double> numbers(const std::string& name) const;
  std::vector<float> floats(const std::string& name) const;      // F32 or F16
  std::vector<int64_t> integers(const std::string& name) const;  // I32, I64, U8, BOOL
  std::vector<uint8_t> bytes(const std::string& name) const;     // U8, BOOL
  double scalar(const std::string& name) const;

  const archive::TensorArchive& archive() const { return archive_; }

 private:
  const archive::TensorInfo& info(const std::string& name) const;
  std::string path_;
  archive::TensorArchive archive_;
};

// From metadata `config`, the reference's own names.
BevConfig config_of(const Fixture& fixture);

// Entry of metadata `profiles` of the geometry fixture.
struct GeometryProfile {
  std::string name;
  std::vector<int64_t> image, feature, n;
  std::vector<Bound> bounds;
  Bound dbound;
  int64_t points = 0, kept_trunc = 0, kept_floor = 0;
};
std::vector<GeometryProfile> geometry_profiles(const Fixture& fixture);
// JSON texts of other fixtures.
std::vector<std::string> string_list(const std::string& json);
std::vector<std::pair<std::string, double>> number_table(const std::string& json);

}  // namespace aerie::bev::parity
