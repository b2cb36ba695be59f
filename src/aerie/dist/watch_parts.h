// What the two sources of watch.h share.
#pragma once

#include <cmath>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/dist/watch.h"
#include "aerie/dist/wire.h"

namespace aerie::dist {

// First byte of a message.
inline constexpr char kHello = 'H', kBeat = 'B', kFail = 'F', kLeave = 'L', kLoss = 'V';
inline constexpr uint32_t kMaxMessage = 64 << 10;
inline constexpr size_t kMaxUnsent = 256 << 10;

inline std::string rounded(double seconds) {
  return str_cat(std::round(seconds * 10) / 10);
}

struct Watch::Peer {
  int fd = -1;
  int rank = -1;  // not known before its hello
  std::string in, out;

  ~Peer() {
    if (fd >= 0) close(fd);
  }
  void send(std::string_view message) {
    put(out, static_cast<uint32_t>(message.size()));
    out.append(message);
  }
};

struct Watch::Rank {
  double heard = 0;  // when it said something last
  Phase phase = Phase::kStart;
  double phase_since = 0;
  std::vector<std::string> lines;
  bool left = false;
};

}  // namespace aerie::dist
