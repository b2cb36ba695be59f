// Writes JSON rows straight into a string: tables have millions of them.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

// Who a row is: tokens are made from it, so a reference needs no look-up.
enum class Table : uint32_t {
  kCategory,
  kAttribute,
  kInstance,
  kSensor,
  kCalibratedSensor,
  kEgoPose,
  kLog,
  kScene,
  kSample,
  kSampleData,
  kSampleAnnotation,
  kMap,
  kMapNode,  // the layers of the map expansion; the location is in the row's upper bits
  kMapLine,
  kMapPolygon,
  kMapDrivable,
  kMapSegment,
  kMapBlock,
  kMapLane,
  kMapCrossing,
  kMapWalkway,
  kMapStopLine,
  kMapCarpark,
  kMapRoadDivider,
  kMapLaneDivider,
  kMapLight,
};

class TokenMaker final {
 public:
  explicit TokenMaker(uint64_t seed) : key_(philox_key(seed, Purpose::kSynth)) {}

  void append(std::string& out, Table table, uint64_t row) const {
    static constexpr char digits[] = "0123456789abcdef";
    const PhiloxBlock block =
        philox_block(key_, kTokenStream + static_cast<uint32_t>(table), row, 0);
    char text[32];
    for (int i = 0; i < 32; ++i) text[i] = digits[(block.v[i / 8] >> (28 - 4 * (i % 8))) & 15];
    out.append(text, 32);
  }
  std::string operator()(Table table, uint64_t row) const {
    std::string out;
    append(out, table, row);
    return out;
  }

 private:
  PhiloxKey key_;
};

// A JSON array of objects, one after the other, keys on lines of their own as nuScenes has them.
class JsonRows final {
 public:
  JsonRows(std::string& out, const TokenMaker& tokens) : out_(out), tokens_(tokens) {}

  JsonRows& begin() {
    out_ += first_row_ ? "{" : ",\n{";
    first_row_ = false;
    first_key_ = true;
    return *this;
  }
  JsonRows& end() {
    out_ += "\n}";
    return *this;
  }
  JsonRows& key(std::string_view name) {
    out_ += first_key_ ? "\n\"" : ",\n\"";
    first_key_ = false;
    out_ += name;
    out_ += "\": ";
    return *this;
  }
  // Values need no escapes here: names and numbers of our own.
  JsonRows& text(std::string_view name, std::string_view value) {
    key(name);
    out_ += '"';
    out_ += value;
    out_ += '"';
    return *this;
  }
  JsonRows& token(std::string_view name, Table table, uint64_t row) {
    key(name);
    out_ += '"';
    tokens_.append(out_, table, row);
    out_ += '"';
    return *this;
  }
  JsonRows& integer(std::string_view name, int64_t value) {
    key(name);
    char buffer[24];
    out_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
    return *this;
  }
  JsonRows& number(std::string_view name, double value) {
    key(name);
    append_number(out_, value);
    return *this;
  }
  JsonRows& boolean(std::string_view name, bool value) {
    key(name);
    out_ += value ? "true" : "false";
    return *this;
  }
  JsonRows& raw(std::string_view name, std::string_view value) {
    key(name);
    out_ += value;
    return *this;
  }
  template <typename Values>
  JsonRows& numbers(std::string_view name, const Values& values) {
    key(name);
    append_numbers(out_, values);
    return *this;
  }

  static void append_number(std::string& out, double value) {
    char buffer[40];
    const char* end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
    const std::string_view text(buffer, static_cast<size_t>(end - buffer));
    out += text;
    // Without a point it would be an integer.
    if (text.find_first_of(".e") == std::string_view::npos) out += ".0";
  }
  template <typename Values>
  static void append_numbers(std::string& out, const Values& values) {
    char separator = '[';
    for (const double value : values) {
      out += separator;
      append_number(out, value);
      separator = ',';
    }
    if (separator == '[') out += '[';
    out += ']';
  }

  // Rows already in the string: a later piece of a file goes on after a comma.
  void continue_after_rows() { first_row_ = false; }

 private:
  std::string& out_;
  const TokenMaker& tokens_;
  bool first_row_ = true;
  bool first_key_ = true;
};

}  // namespace aerie::nuscenes::synth
