#include "aerie/data/nuscenes/map/map_builder.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

using Kind = JsonScanner::Kind;

// Real maps stay below 1e4 m; beyond this, differences of coordinates lose millimetres.
constexpr double kMaxCoordinate = 1e7;
// About a second. Real maps need less than a hundredth of it.
constexpr uint64_t kValidityWork = 500'000'000;

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::kObject:
      return "an object";
    case Kind::kArray:
      return "a list";
    case Kind::kString:
      return "a string";
    case Kind::kNumber:
      return "a number";
    case Kind::kLiteral:
      return "true, false or null";
    case Kind::kNothing:
      break;
  }
  return "no value";
}

Status wrong_type(const RowName& where, std::string_view key, Kind kind, std::string_view wanted) {
  return data_error(
      str_cat(where.text(), ": key '", key, "' is ", kind_name(kind), ", not ", wanted));
}

Status missing_key(const RowName& where, std::string_view key) {
  return data_error(str_cat(where.text(), ": key '", key, "' is missing"));
}

}  // namespace

MapBuilder::MapBuilder(std::string_view text, std::string name)
    : name_(std::move(name)), scanner_(text), validity_(kValidityWork) {}

Status MapBuilder::in_file(Status status) const {
  return std::move(status).with_context(name_);
}

Result<std::shared_ptr<const MapExpansion>> MapBuilder::build() {
  map_ = std::make_shared<MapExpansion>();
  map_->path_ = name_;
  if (Status status = read_top(); !status.ok()) return in_file(std::move(status));
  const TokenRows nodes(node_tokens_), polygons(polygons_.tokens), lines(lines_.tokens);
  polygon_shape_.assign(polygons_.tokens.size(), TokenRows::kNone);
  line_shape_.assign(lines_.tokens.size(), TokenRows::kNone);
  map_->ring_begin_.push_back(0);
  for (int i = 0; i < kNumMapLayers; ++i) {
    const auto layer = static_cast<MapLayer>(i);
    Status status = resolve_layer(layer, nodes, is_line_layer(layer) ? lines : polygons);
    if (!status.ok()) return in_file(std::move(status));
  }
  map_->finish();
  return std::shared_ptr<const MapExpansion>(std::move(map_));
}

Status MapBuilder::read_top() {
  if (scanner_.peek() != Kind::kObject)
    return data_error("not a map expansion: the file does not begin with an object")
        .with_hint("maps/expansion/<location>.json of map expansion 1.3");
  scanner_.begin_object();
  std::string_view key;
  bool has_version = false;
  for (bool first = true; scanner_.next_member(first, key);) {
    if (key == "version") {
      has_version = true;
      AERIE_RETURN_IF_ERROR(read_version());
    } else if (key == "node") {
      AERIE_RETURN_IF_ERROR(read_nodes());
    } else if (key == "polygon") {
      AERIE_RETURN_IF_ERROR(read_outlines({key, "exterior_node_tokens", "holes"}, polygons_));
    } else if (key == "line") {
      AERIE_RETURN_IF_ERROR(read_outlines({key, "node_tokens", {}}, lines_));
    } else if (const auto layer = map_layer_from(key)) {
      AERIE_RETURN_IF_ERROR(read_layer(*layer));
    } else {
      scanner_.skip();
    }
  }
  if (!scanner_.failed() && !scanner_.at_end()) scanner_.fail("more text after the map");
  if (scanner_.failed()) return scanner_.error();
  if (!has_version)
    return data_error("no key 'version': this map is older than 1.3")
        .with_hint("fetch map expansion 1.3 from nuscenes.org");
  for (const auto& [present, name] :
       {std::pair{has_nodes_, "node"}, {polygons_.present, "polygon"}, {lines_.present, "line"}})
    if (!present) return data_error(str_cat("layer '", name, "' is missing"));
  return ok_status();
}

Status MapBuilder::read_version() {
  if (const Kind kind = scanner_.peek(); kind != Kind::kString)
    return data_error(str_cat("key 'version' is ", kind_name(kind), ", not a string"));
  std::string_view text;
  if (!scanner_.read_string(text)) return scanner_.error();
  map_->version_ = text;
  int major = 0, minor = 0;
  char rest = '\0';
  // "1.3", and later ones: "1.4", "1.10", "2.0".
  if (std::sscanf(map_->version_.c_str(), "%d.%d%c", &major, &minor, &rest) < 2)
    return data_error(str_cat("version '", shortened(text), "' is not of the form 1.3"));
  if (major < 1 || (major == 1 && minor < 3))
    return data_error(str_cat("map version ", shortened(text), " is too old"))
        .with_hint("fetch map expansion 1.3 from nuscenes.org");
  return ok_status();
}

template <typename Row>
Status MapBuilder::for_rows(std::string_view layer, const Row& row) {
  if (const Kind kind = scanner_.peek(); kind != Kind::kArray)
    return data_error(str_cat("layer '", layer, "' is ", kind_name(kind), ", not a list"));
  scanner_.begin_array();
  uint32_t number = 0;
  for (bool first = true; scanner_.next_element(first); ++number) {
    if (number == UINT32_MAX) return too_many("rows");
    const RowName where{layer, number};
    if (const Kind kind = scanner_.peek(); kind != Kind::kObject && kind != Kind::kNothing)
      return data_error(str_cat(where.text(), " is ", kind_name(kind), ", not an object"));
    if (!scanner_.begin_object()) break;
    AERIE_RETURN_IF_ERROR(row(number, where));
  }
  return scanner_.failed() ? scanner_.error().with_context(str_cat("layer '", layer, "'"))
                           : ok_status();
}

Status MapBuilder::read_token(const RowName& row, std::string_view key, std::string_view& out) {
  if (const Kind kind = scanner_.peek(); kind != Kind::kString && kind != Kind::kNothing)
    return wrong_type(row, key, kind, "a string");
  return scanner_.read_string(out) ? ok_status() : scanner_.error().with_context(row.text());
}

Status MapBuilder::read_tokens(const RowName& row, std::string_view key, Tokens& out) {
  if (const Kind kind = scanner_.peek(); kind != Kind::kArray && kind != Kind::kNothing)
    return wrong_type(row, key, kind, "a list");
  scanner_.begin_array();
  for (bool first = true; scanner_.next_element(first);) {
    if (out.size() == UINT32_MAX) return too_many("tokens");
    AERIE_RETURN_IF_ERROR(read_token(row, key, out.emplace_back()));
  }
  return scanner_.failed() ? scanner_.error().with_context(row.text()) : ok_status();
}

Status MapBuilder::read_coordinate(const RowName& row, std::string_view key, double& out) {
  if (const Kind kind = scanner_.peek(); kind != Kind::kNumber && kind != Kind::kNothing)
    return wrong_type(row, key, kind, "a number");
  if (!scanner_.read_number(out)) return scanner_.error().with_context(row.text());
  if (!(std::abs(out) <= kMaxCoordinate))
    return data_error(str_cat(row.text(), ": key '", key, "' is ", out, ", not a place on a map"))
        .with_hint("coordinates are metres within +-1e7");
  return ok_status();
}

Status MapBuilder::read_nodes() {
  has_nodes_ = true;
  node_tokens_.clear();
  node_points_.clear();
  return for_rows("node", [&](uint32_t, const RowName& where) {
    std::string_view key, token;
    raster::Point point;
    bool has_token = false, has_x = false, has_y = false;
    for (bool first = true; scanner_.next_member(first, key);) {
      if (key == "token") {
        has_token = true;
        AERIE_RETURN_IF_ERROR(read_token(where, key, token));
      } else if (key == "x") {
        has_x = true;
        AERIE_RETURN_IF_ERROR(read_coordinate(where, key, point.x));
      } else if (key == "y") {
        has_y = true;
        AERIE_RETURN_IF_ERROR(read_coordinate(where, key, point.y));
      } else {
        scanner_.skip();
      }
    }
    if (scanner_.failed()) return scanner_.error().with_context(where.text());
    if (!has_token) return missing_key(where, "token");
    if (!has_x) return missing_key(where, "x");
    if (!has_y) return missing_key(where, "y");
    node_tokens_.push_back(token);
    node_points_.push_back(point);
    return ok_status();
  });
}

Status MapBuilder::read_holes(const RowName& row, Outlines& out) {
  if (const Kind kind = scanner_.peek(); kind != Kind::kArray && kind != Kind::kNothing)
    return wrong_type(row, "holes", kind, "a list");
  scanner_.begin_array();
  uint32_t hole = 0;
  for (bool first = true; scanner_.next_element(first); ++hole) {
    const RowName where{row.layer, row.row, hole};
    if (const Kind kind = scanner_.peek(); kind != Kind::kObject && kind != Kind::kNothing)
      return data_error(str_cat(where.text(), " is ", kind_name(kind), ", not an object"));
    if (!scanner_.begin_object()) break;
    std::string_view key;
    bool has_nodes = false;
    for (bool inner_first = true; scanner_.next_member(inner_first, key);) {
      if (key == "node_tokens" && !has_nodes) {
        has_nodes = true;
        out.node_begin.push_back(static_cast<uint32_t>(out.nodes.size()));
        AERIE_RETURN_IF_ERROR(read_tokens(where, key, out.nodes));
      } else {
        scanner_.skip();
      }
    }
    if (!scanner_.failed() && !has_nodes) return missing_key(where, "node_tokens");
  }
  return scanner_.failed() ? scanner_.error().with_context(row.text()) : ok_status();
}

Status MapBuilder::read_outlines(const OutlineKeys& keys, Outlines& out) {
  out = Outlines{};
  out.present = true;
  const auto read_row = [&](uint32_t, const RowName& where) {
    std::string_view key, token;
    bool has_token = false, has_ring = false, has_holes = keys.holes.empty();
    out.ring_begin.push_back(static_cast<uint32_t>(out.node_begin.size()));
    Outlines holes;  // when they come before the outside
    for (bool first = true; scanner_.next_member(first, key);) {
      if (key == "token") {
        has_token = true;
        AERIE_RETURN_IF_ERROR(read_token(where, key, token));
      } else if (key == keys.ring && !has_ring) {
        has_ring = true;
        out.node_begin.push_back(static_cast<uint32_t>(out.nodes.size()));
        AERIE_RETURN_IF_ERROR(read_tokens(where, key, out.nodes));
      } else if (key == keys.holes && !has_holes) {
        has_holes = true;
        AERIE_RETURN_IF_ERROR(read_holes(where, has_ring ? out : holes));
      } else {
        scanner_.skip();
      }
    }
    if (scanner_.failed()) return scanner_.error().with_context(where.text());
    if (!has_token) return missing_key(where, "token");
    if (!has_ring) return missing_key(where, keys.ring);
    if (!has_holes) return missing_key(where, keys.holes);
    for (const uint32_t begin : holes.node_begin)
      out.node_begin.push_back(static_cast<uint32_t>(out.nodes.size()) + begin);
    out.nodes.insert(out.nodes.end(), holes.nodes.begin(), holes.nodes.end());
    if (out.nodes.size() > UINT32_MAX) return too_many("tokens");
    out.tokens.push_back(token);
    return ok_status();
  };
  AERIE_RETURN_IF_ERROR(for_rows(keys.layer, read_row));
  out.ring_begin.push_back(static_cast<uint32_t>(out.node_begin.size()));
  out.node_begin.push_back(static_cast<uint32_t>(out.nodes.size()));
  return ok_status();
}

Status MapBuilder::read_layer(MapLayer layer) {
  Records& records = records_[static_cast<size_t>(layer)];
  records = Records{};
  map_->layers_[static_cast<size_t>(layer)].present = true;
  const bool many = layer == MapLayer::kDrivableArea;
  const std::string_view wanted = many                   ? "polygon_tokens"
                                  : is_line_layer(layer) ? "line_token"
                                                         : "polygon_token";
  return for_rows(name_of(layer), [&](uint32_t number, const RowName& where) {
    records.num_rows = number + 1;
    std::string_view key;
    bool found = false;
    for (bool first = true; scanner_.next_member(first, key);) {
      if (key != wanted || found) {
        scanner_.skip();
        continue;
      }
      found = true;
      if (many)
        AERIE_RETURN_IF_ERROR(read_tokens(where, key, records.shapes));
      else
        AERIE_RETURN_IF_ERROR(read_token(where, key, records.shapes.emplace_back()));
    }
    if (scanner_.failed()) return scanner_.error().with_context(where.text());
    if (!found) return missing_key(where, wanted);
    records.row.resize(records.shapes.size(), number);
    return ok_status();
  });
}

}  // namespace aerie::nuscenes
