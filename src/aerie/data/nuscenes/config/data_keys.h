// Where the rows come from. Internal to the folder.
#pragma once

#include <span>
#include <string_view>

#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/data/nuscenes/config/data_config.h"

namespace aerie::nuscenes {

const config::FieldKeys<DataConfig>& data_fields();
std::span<const config::IdleRule> data_idle_rules();

// The channels and classes that may be named.
inline constexpr std::string_view kCameraNames[] = {"CAM_FRONT",      "CAM_FRONT_RIGHT",
                                                    "CAM_FRONT_LEFT", "CAM_BACK",
                                                    "CAM_BACK_LEFT",  "CAM_BACK_RIGHT"};
inline constexpr std::string_view kMapClassNames[] = {
    "drivable_area",  "ped_crossing", "walkway",    "stop_line", "carpark_area", "divider",
    "drivable_area*", "road_segment", "road_block", "lane",      "road_divider", "lane_divider"};

}  // namespace aerie::nuscenes
