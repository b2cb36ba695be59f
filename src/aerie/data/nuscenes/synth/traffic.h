// Vehicles, people and things on the street of one scene.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "aerie/data/nuscenes/synth/route.h"
#include "aerie/data/nuscenes/synth/town.h"

namespace aerie::nuscenes::synth {

// nuScenes' categories in its order.
constexpr std::array<std::string_view, 23> kCategories = {"human.pedestrian.adult",
                                                          "human.pedestrian.child",
                                                          "human.pedestrian.wheelchair",
                                                          "human.pedestrian.stroller",
                                                          "human.pedestrian.personal_mobility",
                                                          "human.pedestrian.police_officer",
                                                          "human.pedestrian.construction_worker",
                                                          "animal",
                                                          "vehicle.car",
                                                          "vehicle.motorcycle",
                                                          "vehicle.bicycle",
                                                          "vehicle.bus.bendy",
                                                          "vehicle.bus.rigid",
                                                          "vehicle.truck",
                                                          "vehicle.construction",
                                                          "vehicle.emergency.ambulance",
                                                          "vehicle.emergency.police",
                                                          "vehicle.trailer",
                                                          "movable_object.barrier",
                                                          "movable_object.trafficcone",
                                                          "movable_object.pushable_pullable",
                                                          "movable_object.debris",
                                                          "static_object.bicycle_rack"};

struct Actor {
  int category = 8;
  double width = 1.9, length = 4.6, height = 1.6;
  bool moves = false;  // with the ego, `gap` metres ahead of it on the same route
  double gap = 0.0;
  bool parked = false;
  Pose2 place;          // of one that stands
  uint32_t colour = 0;  // 0xRRGGBB
};

// `count` of them around the stretch of the route between two positions; none touches the route
// or another one that stands.
std::vector<Actor> make_traffic(const Town& town, const Route& route, double from_metres,
                                double to_metres, uint64_t seed, uint64_t scene, int count);

// Where an actor is while the ego is `ego_metres` along the route.
Pose2 place_of(const Actor& actor, const Route& route, double ego_metres);

}  // namespace aerie::nuscenes::synth
