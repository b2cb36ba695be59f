#include "aerie/data/nuscenes/synth/traffic.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

constexpr double kAround = 70.0;  // metres from the route

struct Kind {
  int category;
  int share;  // of those that stand
  double width, length, height;
  bool on_road;
};
constexpr Kind kKinds[] = {
    {8, 40, 1.90, 4.60, 1.65, true},  {13, 6, 2.50, 7.50, 3.00, true},
    {12, 4, 2.90, 11.0, 3.40, true},  {17, 2, 2.50, 9.00, 3.60, true},
    {14, 2, 2.60, 6.50, 3.10, true},  {9, 4, 0.80, 2.10, 1.45, true},
    {10, 4, 0.65, 1.75, 1.30, true},  {0, 22, 0.65, 0.75, 1.75, false},
    {18, 8, 2.40, 0.55, 1.00, false}, {19, 8, 0.40, 0.40, 1.05, false},
};
constexpr uint32_t kColours[] = {0xB8BCC2, 0x2A2C30, 0xE6E6E2, 0x7A1C1E, 0x23406E,
                                 0x4E5A4A, 0xA88A3C, 0x5C5F66, 0x1E5A50, 0x8C4A26};

class Crowd final {
 public:
  Crowd(const Town& town, const Route& route, double from, double to, RandomStream& random)
      : town_(town), route_(route), from_(from), to_(to), random_(random) {
    // The route with what drives ahead and behind on it.
    const std::vector<Point2>& points = route.points();
    for (size_t i = 0; i < points.size(); i += 2) driven_.push_back(points[i]);
    const auto near = [&](Point2 p) { return distance_to_stretch(p) < kAround; };
    for (size_t i = 0; i < town.net.roads.size(); ++i)
      if (near(town.net.roads[i].at(0.5 * town.net.roads[i].stretch, 0.0)))
        roads_.push_back(static_cast<int>(i));
    for (size_t i = 0; i < town.carparks.size(); ++i)
      if (near(town.carparks[i].area.shape.exterior[0])) carparks_.push_back(static_cast<int>(i));
    for (size_t i = 0; i < town.walkways.size(); ++i)
      if (near(town.walkways[i].shape.exterior[0])) walkways_.push_back(static_cast<int>(i));
  }

  Actor standing() {
    int total = 0;
    for (const Kind& kind : kKinds) total += kind.share;
    int drawn = static_cast<int>(random_.below(static_cast<uint64_t>(total)));
    const Kind* kind = kKinds;
    while (drawn >= kind->share) drawn -= (kind++)->share;
    Actor actor = sized(*kind);
    for (int attempt = 0; attempt < 40; ++attempt) {
      if (!try_place(*kind, actor)) continue;
      if (!is_free(actor)) continue;
      taken_.push_back(actor);
      return actor;
    }
    // No room: a cone off the road.
    actor = sized(kKinds[9]);
    for (double side = 14.0;; side += 1.5) {
      const Pose2 pose = route_.at(random_.uniform(from_, to_));
      const Point2 d{std::cos(pose.heading), std::sin(pose.heading)};
      actor.place = {pose.position + (random_.below(2) == 0 ? side : -side) * left_of(d), 0.0};
      if (is_free(actor) || side > 60.0) break;
    }
    taken_.push_back(actor);
    return actor;
  }

  Actor moving(double gap) {
    Actor actor = sized(kKinds[random_.below(5) == 0 ? 1 : 0]);
    actor.moves = true;
    actor.gap = gap;
    return actor;
  }

 private:
  Actor sized(const Kind& kind) {
    Actor actor;
    actor.category = kind.category;
    actor.width = kind.width * random_.uniform(0.95, 1.05);
    actor.length = kind.length * random_.uniform(0.92, 1.08);
    actor.height = kind.height * random_.uniform(0.93, 1.07);
    actor.colour = kColours[random_.below(std::size(kColours))];
    if (kind.category == 19) actor.colour = 0xE0641E;
    return actor;
  }

  bool try_place(const Kind& kind, Actor& actor) {
    if (!kind.on_road) {
      if (walkways_.empty()) return false;
      const Ring& ring = town_.walkways[walkways_[random_.below(walkways_.size())]].shape.exterior;
      // Between two corners that face each other across the walkway.
      const size_t half = ring.size() / 2, i = random_.below(half);
      actor.place = {mix(ring[i], ring[ring.size() - 1 - i], random_.uniform(0.25, 0.75)),
                     random_.uniform(-3.1, 3.1)};
      return true;
    }
    if (!carparks_.empty() && random_.below(3) == 0) {
      const Carpark& park = town_.carparks[carparks_[random_.below(carparks_.size())]];
      const Ring& ring = park.area.shape.exterior;
      const size_t half = ring.size() / 2, i = random_.below(half);
      actor.place = {mix(ring[i], ring[ring.size() - 1 - i], random_.uniform(0.3, 0.7)),
                     park.heading};
      actor.parked = true;
      return true;
    }
    if (roads_.empty()) return false;
    const Road& road = town_.net.roads[roads_[random_.below(roads_.size())]];
    const int lanes = road.forward_lanes + road.backward_lanes;
    const int lane = static_cast<int>(random_.below(static_cast<uint64_t>(lanes)));
    const double s = random_.uniform(0.0, road.stretch);
    const Point2 d = road.direction(s);
    const double turn = lane < road.forward_lanes ? 0.0 : 3.14159265358979;
    actor.place = {road.at(s, -road.half_width() + (lane + 0.5) * kLaneWidth),
                   std::atan2(d.y, d.x) + turn + random_.uniform(-0.03, 0.03)};
    return true;
  }

  double distance_to_stretch(Point2 p) const {
    double best = 1e9;
    for (double m = from_; m <= to_; m += 8.0)
      best = std::min(best, length(p - route_.at(m).position));
    return best;
  }

  bool is_free(const Actor& actor) const {
    const Point2 d{std::cos(actor.place.heading), std::sin(actor.place.heading)};
    // A wide vehicle on the route needs this much to either side.
    const double clear = 1.5 + 0.5 * actor.width;
    for (const double along : {-0.45, 0.0, 0.45}) {
      const Point2 p = actor.place.position + along * actor.length * d;
      for (const Point2& q : driven_)
        if (dot(p - q, p - q) < clear * clear) return false;
    }
    for (const Actor& other : taken_)
      if (length(other.place.position - actor.place.position) <
          0.5 * (std::hypot(actor.length, actor.width) + std::hypot(other.length, other.width)) +
              0.2)
        return false;
    return true;
  }

  const Town& town_;
  const Route& route_;
  const double from_, to_;
  RandomStream& random_;
  std::vector<Point2> driven_;
  std::vector<int> roads_, carparks_, walkways_;
  std::vector<Actor> taken_;
};

}  // namespace

std::vector<Actor> make_traffic(const Town& town, const Route& route, double from_metres,
                                double to_metres, uint64_t seed, uint64_t scene, int count) {
  RandomStream random(seed, Purpose::kSynth, kTrafficStream, scene);
  Crowd crowd(town, route, from_metres, to_metres, random);
  std::vector<Actor> out;
  double ahead = 13.0, behind = 14.0;
  for (int i = 0; i < count; ++i) {
    // A few drive with the ego, ahead and behind in turn, never nearer to each other than 13 m.
    if (i < 4 && count > 6) {
      double& gap = i % 2 == 0 ? ahead : behind;
      const double here = gap + random.uniform(0.0, 8.0);
      gap = here + 13.0;
      out.push_back(crowd.moving(i % 2 == 0 ? here : -here));
    } else {
      out.push_back(crowd.standing());
    }
  }
  return out;
}

Pose2 place_of(const Actor& actor, const Route& route, double ego_metres) {
  return actor.moves ? route.at(ego_metres + actor.gap) : actor.place;
}

}  // namespace aerie::nuscenes::synth
