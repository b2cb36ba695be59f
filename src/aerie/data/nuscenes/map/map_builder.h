// Makes a MapExpansion of the text of its file: first everything is read in the order it comes,
// with tokens as they stand there; then the tokens are looked up and rings become coordinates.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/map/json_scanner.h"
#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/raster/validity.h"

namespace aerie::nuscenes {

// Token to row. Of two rows with one token the later counts, as in the devkit.
class TokenRows {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  explicit TokenRows(const std::vector<std::string_view>& tokens);
  uint32_t find(std::string_view token) const;

 private:
  const std::vector<std::string_view>& tokens_;
  std::vector<uint32_t> slots_;
};

// For messages.
Status too_many(std::string_view what);
std::string shortened(std::string_view token);
// Which row of which layer; made into words only when something is wrong.
struct RowName {
  static constexpr uint32_t kNoHole = UINT32_MAX;
  std::string_view layer;
  uint32_t row = 0;
  uint32_t hole = kNoHole;
  std::string text() const;  // "layer 'polygon', row 3, hole 0"
};

class MapBuilder {
 public:
  // `text` must live until build() has returned.
  MapBuilder(std::string_view text, std::string name);
  Result<std::shared_ptr<const MapExpansion>> build();

 private:
  using Tokens = std::vector<std::string_view>;
  // Rows of polygon or line: rings of node tokens.
  struct Outlines {
    bool present = false;
    Tokens tokens;
    std::vector<uint32_t> ring_begin;  // of each row, in node_begin
    std::vector<uint32_t> node_begin;  // of each ring, in nodes
    Tokens nodes;
  };
  // Rows of a layer: tokens of polygons or lines.
  struct Records {
    Tokens shapes;
    std::vector<uint32_t> row;  // of each shape
    uint32_t num_rows = 0;
  };
  // The names of the keys that hold rings.
  struct OutlineKeys {
    std::string_view layer, ring, holes;
  };

  Status read_top();
  Status read_version();
  Status read_nodes();
  Status read_outlines(const OutlineKeys& keys, Outlines& out);
  Status read_holes(const RowName& row, Outlines& out);
  Status read_layer(MapLayer layer);
  Status read_tokens(const RowName& row, std::string_view key, Tokens& out);
  Status read_token(const RowName& row, std::string_view key, std::string_view& out);
  Status read_coordinate(const RowName& row, std::string_view key, double& out);
  // Goes through the rows of a list; `row` reads the members of one.
  template <typename Row>
  Status for_rows(std::string_view layer, const Row& row);

  Status resolve_layer(MapLayer layer, const TokenRows& nodes, const TokenRows& outlines);
  Status resolve_shape(const Outlines& outlines, uint32_t row, bool is_line,
                       const TokenRows& nodes);
  Status check_validity(MapExpansion::Shape& shape, const RowName& where);
  Status in_file(Status status) const;

  std::string name_;
  JsonScanner scanner_;
  std::shared_ptr<MapExpansion> map_;
  bool has_nodes_ = false;
  Tokens node_tokens_;
  std::vector<raster::Point> node_points_;
  Outlines polygons_, lines_;
  std::array<Records, kNumMapLayers> records_;
  // Of each row of polygon and line: its number in map_->shapes_.
  std::vector<uint32_t> polygon_shape_, line_shape_;
  std::vector<uint8_t> checked_;  // of each shape: its validity is known
  raster::ValidityChecker validity_;
};

}  // namespace aerie::nuscenes
