#include "aerie/data/nuscenes/synth/map_file.h"

#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace aerie::nuscenes::synth {

namespace {

constexpr int kLocationShift = 32;

// Layers refer to polygons and lines, those to nodes: each is written into its own list as the
// layers come along, and the file is put together at the end.
class Writer final {
 public:
  Writer(const Town& town, const TokenMaker& tokens)
      : town_(town),
        tokens_(tokens),
        nodes_(node_text_, tokens),
        lines_(line_text_, tokens),
        polygons_(polygon_text_, tokens) {}

  std::string write() {
    std::string layers;
    add_layer(layers, "drivable_area", [&](JsonRows& rows) { write_drivable(rows); });
    add_layer(layers, "road_segment", [&](JsonRows& rows) { write_segments(rows); });
    add_layer(layers, "road_block", [&](JsonRows& rows) { write_blocks(rows); });
    add_layer(layers, "lane", [&](JsonRows& rows) { write_lanes(rows); });
    add_layer(layers, "ped_crossing", [&](JsonRows& rows) { write_crossings(rows); });
    add_layer(layers, "walkway", [&](JsonRows& rows) { write_walkways(rows); });
    add_layer(layers, "stop_line", [&](JsonRows& rows) { write_stop_lines(rows); });
    add_layer(layers, "carpark_area", [&](JsonRows& rows) { write_carparks(rows); });
    add_layer(layers, "road_divider", [&](JsonRows& rows) { write_road_dividers(rows); });
    add_layer(layers, "lane_divider", [&](JsonRows& rows) { write_lane_dividers(rows); });
    add_layer(layers, "traffic_light", [&](JsonRows& rows) { write_lights(rows); });
    std::string out = "{\n\"version\": \"1.3\",\n\"canvas_edge\": ";
    JsonRows::append_numbers(out, std::array<double, 2>{town_.net.width, town_.net.height});
    out += ",\n\"node\": [\n" + node_text_ + "\n],\n\"line\": [\n" + line_text_ +
           "\n],\n\"polygon\": [\n" + polygon_text_ + "\n]";
    out += layers;
    out += ",\n\"lane_connector\": [],\n\"arcline_path_3\": {},\n\"connectivity\": {}\n}\n";
    return out;
  }

 private:
  uint64_t row(uint64_t number) const {
    return static_cast<uint64_t>(town_.location) << kLocationShift | number;
  }

  template <typename Write>
  void add_layer(std::string& out, std::string_view name, const Write& write) {
    out += ",\n\"";
    out += name;
    out += "\": [\n";
    JsonRows rows(out, tokens_);
    write(rows);
    out += "\n]";
  }

  // ["token", "token"]
  void append_tokens(std::string& out, Table table, std::span<const uint64_t> numbers) const {
    out += '[';
    for (size_t i = 0; i < numbers.size(); ++i) {
      out += i == 0 ? "\"" : ", \"";
      tokens_.append(out, table, row(numbers[i]));
      out += '"';
    }
    out += ']';
  }

  std::vector<uint64_t> add_nodes(const std::vector<Point2>& points) {
    std::vector<uint64_t> numbers;
    for (const Point2& point : points) {
      nodes_.begin().token("token", Table::kMapNode, row(num_nodes_));
      nodes_.number("x", point.x).number("y", point.y).end();
      numbers.push_back(num_nodes_++);
    }
    return numbers;
  }

  uint64_t add_line(const Polyline& line) {
    const std::vector<uint64_t> nodes = add_nodes(line);
    lines_.begin().token("token", Table::kMapLine, row(num_lines_)).key("node_tokens");
    append_tokens(line_text_, Table::kMapNode, nodes);
    lines_.end();
    return num_lines_++;
  }

  // Node numbers of the exterior go to `corners` when it is given.
  uint64_t add_polygon(const Shape& shape, std::vector<uint64_t>* corners = nullptr) {
    std::vector<uint64_t> exterior = add_nodes(shape.exterior);
    std::vector<std::vector<uint64_t>> holes;
    for (const Ring& hole : shape.holes) holes.push_back(add_nodes(hole));
    polygons_.begin().token("token", Table::kMapPolygon, row(num_polygons_));
    polygons_.key("exterior_node_tokens");
    append_tokens(polygon_text_, Table::kMapNode, exterior);
    polygons_.key("holes");
    polygon_text_ += '[';
    for (size_t i = 0; i < holes.size(); ++i) {
      polygon_text_ += i == 0 ? "{\"node_tokens\": " : ", {\"node_tokens\": ";
      append_tokens(polygon_text_, Table::kMapNode, holes[i]);
      polygon_text_ += '}';
    }
    polygon_text_ += ']';
    polygons_.end();
    if (corners != nullptr) *corners = std::move(exterior);
    return num_polygons_++;
  }

  JsonRows& begin(JsonRows& rows, Table table, uint64_t number) {
    return rows.begin().token("token", table, row(number));
  }
  JsonRows& polygon_of(JsonRows& rows, uint64_t polygon) {
    return rows.token("polygon_token", Table::kMapPolygon, row(polygon));
  }
  void token_list(JsonRows& rows, std::string_view key, Table table,
                  std::span<const uint64_t> numbers) {
    std::string list;
    append_tokens(list, table, numbers);
    rows.raw(key, list);
  }

  void write_drivable(JsonRows& rows) {
    const uint64_t records = static_cast<uint64_t>(town_.drivable_records);
    std::vector<uint64_t> polygons;
    for (const Area& area : town_.drivable) polygons.push_back(add_polygon(area.shape));
    for (uint64_t r = 0; r < records; ++r) {
      std::vector<uint64_t> mine;
      for (uint64_t p = r; p < polygons.size(); p += records) mine.push_back(polygons[p]);
      begin(rows, Table::kMapDrivable, r);
      token_list(rows, "polygon_tokens", Table::kMapPolygon, mine);
      rows.end();
    }
  }

  void write_segments(JsonRows& rows) {
    for (size_t i = 0; i < town_.segments.size(); ++i) {
      const RoadSegment& segment = town_.segments[i];
      begin(rows, Table::kMapSegment, i);
      polygon_of(rows, add_polygon(segment.area.shape))
          .boolean("is_intersection", segment.is_intersection)
          .token("drivable_area_token", Table::kMapDrivable,
                 row(static_cast<uint64_t>(segment.drivable % town_.drivable_records)))
          .end();
    }
  }

  void write_blocks(JsonRows& rows) {
    for (size_t i = 0; i < town_.blocks.size(); ++i) {
      const RoadBlock& block = town_.blocks[i];
      begin(rows, Table::kMapBlock, i);
      polygon_of(rows, add_polygon(block.area.shape))
          .token("from_edge_line_token", Table::kMapLine, row(add_line(block.from_edge)))
          .token("to_edge_line_token", Table::kMapLine, row(add_line(block.to_edge)))
          .token("road_segment_token", Table::kMapSegment,
                 row(static_cast<uint64_t>(block.segment)))
          .end();
    }
  }

  void write_lanes(JsonRows& rows) {
    for (size_t i = 0; i < town_.lanes.size(); ++i) {
      const Lane& lane = town_.lanes[i];
      std::vector<uint64_t> corners;
      begin(rows, Table::kMapLane, i);
      polygon_of(rows, add_polygon(lane.area.shape, &corners))
          .text("lane_type", "CAR")
          .token("from_edge_line_token", Table::kMapLine, row(add_line(lane.from_edge)))
          .token("to_edge_line_token", Table::kMapLine, row(add_line(lane.to_edge)));
      for (const bool left : {true, false}) {
        std::string list = "[";
        for (const int corner : left ? lane.left : lane.right) {
          list += list.size() == 1 ? "{\"node_token\": \"" : ", {\"node_token\": \"";
          tokens_.append(list, Table::kMapNode, row(corners[static_cast<size_t>(corner)]));
          list += "\", \"segment_type\": \"SINGLE_SOLID_WHITE\"}";
        }
        rows.raw(left ? "left_lane_divider_segments" : "right_lane_divider_segments", list + "]");
      }
      rows.end();
    }
  }

  void write_crossings(JsonRows& rows) {
    for (size_t i = 0; i < town_.crossings.size(); ++i) {
      begin(rows, Table::kMapCrossing, i);
      polygon_of(rows, add_polygon(town_.crossings[i].area.shape))
          .token("road_segment_token", Table::kMapSegment,
                 row(static_cast<uint64_t>(town_.crossings[i].segment)))
          .end();
    }
  }

  void write_walkways(JsonRows& rows) {
    for (size_t i = 0; i < town_.walkways.size(); ++i) {
      begin(rows, Table::kMapWalkway, i);
      polygon_of(rows, add_polygon(town_.walkways[i].shape)).end();
    }
  }

  void write_stop_lines(JsonRows& rows) {
    static constexpr std::string_view names[] = {"PED_CROSSING", "TURN_STOP", "STOP_SIGN", "YIELD",
                                                 "TRAFFIC_LIGHT"};
    for (size_t i = 0; i < town_.stop_lines.size(); ++i) {
      const StopLine& stop = town_.stop_lines[i];
      std::vector<uint64_t> crossings, lights;
      if (stop.crossing >= 0) crossings.push_back(static_cast<uint64_t>(stop.crossing));
      if (stop.light >= 0) lights.push_back(static_cast<uint64_t>(stop.light));
      begin(rows, Table::kMapStopLine, i);
      polygon_of(rows, add_polygon(stop.area.shape))
          .text("stop_line_type", names[static_cast<int>(stop.type)]);
      token_list(rows, "ped_crossing_tokens", Table::kMapCrossing, crossings);
      token_list(rows, "traffic_light_tokens", Table::kMapLight, lights);
      rows.token("road_block_token", Table::kMapBlock, row(static_cast<uint64_t>(stop.block)))
          .end();
    }
  }

  void write_carparks(JsonRows& rows) {
    for (size_t i = 0; i < town_.carparks.size(); ++i) {
      const Carpark& park = town_.carparks[i];
      begin(rows, Table::kMapCarpark, i);
      polygon_of(rows, add_polygon(park.area.shape))
          .number("orientation", park.heading)
          .token("road_block_token", Table::kMapBlock, row(static_cast<uint64_t>(park.block)))
          .end();
    }
  }

  void write_road_dividers(JsonRows& rows) {
    for (size_t i = 0; i < town_.road_dividers.size(); ++i) {
      begin(rows, Table::kMapRoadDivider, i)
          .token("line_token", Table::kMapLine, row(add_line(town_.road_dividers[i].line)))
          .token("road_segment_token", Table::kMapSegment,
                 row(static_cast<uint64_t>(town_.road_dividers[i].segment)))
          .end();
    }
  }

  void write_lane_dividers(JsonRows& rows) {
    for (size_t i = 0; i < town_.lane_dividers.size(); ++i) {
      const uint64_t first_node = num_nodes_;
      const uint64_t line = add_line(town_.lane_dividers[i].line);
      std::string list = "[";
      for (uint64_t node = first_node; node < num_nodes_; ++node) {
        list += list.size() == 1 ? "{\"node_token\": \"" : ", {\"node_token\": \"";
        tokens_.append(list, Table::kMapNode, row(node));
        list += "\", \"segment_type\": \"SINGLE_ZIGZAG_WHITE\"}";
      }
      begin(rows, Table::kMapLaneDivider, i)
          .token("line_token", Table::kMapLine, row(line))
          .raw("lane_divider_segments", list + "]")
          .end();
    }
  }

  void write_lights(JsonRows& rows) {
    for (size_t i = 0; i < town_.lights.size(); ++i) {
      const TrafficLight& light = town_.lights[i];
      const std::array<uint64_t, 1> block{static_cast<uint64_t>(light.block)};
      begin(rows, Table::kMapLight, i)
          .token("line_token", Table::kMapLine, row(add_line(light.line)))
          .text("traffic_light_type", "VERTICAL");
      token_list(rows, "from_road_block_tokens", Table::kMapBlock, block);
      std::string pose = "{\"tx\": ";
      const std::pair<const char*, double> rest[] = {{", \"ty\": ", light.position.y},
                                                     {", \"tz\": ", 4.0},
                                                     {", \"rx\": ", 0.0},
                                                     {", \"ry\": ", 0.0},
                                                     {", \"rz\": ", light.heading}};
      JsonRows::append_number(pose, light.position.x);
      for (const auto& [label, value] : rest) {
        pose += label;
        JsonRows::append_number(pose, value);
      }
      rows.raw(
              "items",
              "[{\"color\": \"RED\", \"shape\": \"CIRCLE\", \"rel_pos\": {\"tx\": 0.0, \"ty\": "
              "0.0, "
              "\"tz\": 0.6, \"rx\": 0.0, \"ry\": 0.0, \"rz\": 0.0}, \"to_road_block_tokens\": []}]")
          .raw("pose", pose + "}")
          .end();
    }
  }

  const Town& town_;
  const TokenMaker& tokens_;
  std::string node_text_, line_text_, polygon_text_;
  JsonRows nodes_, lines_, polygons_;
  uint64_t num_nodes_ = 0, num_lines_ = 0, num_polygons_ = 0;
};

}  // namespace

std::string map_expansion_json(const Town& town, const TokenMaker& tokens) {
  return Writer(town, tokens).write();
}

}  // namespace aerie::nuscenes::synth
