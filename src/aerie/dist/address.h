// Addresses of this host, for ranks that meet over a network.
#pragma once

#include <cstdint>
#include <string>

#include "aerie/base/status.h"

namespace aerie::dist {

std::string host_name();
bool is_loopback(const std::string& address);
// The numeric address by which this host reaches `host`. `remote`: others must be able to use it,
// so one of a real interface is taken where the name leads to the loopback one.
Result<std::string> address_towards(const std::string& host, uint16_t port, bool remote);

// A socket that listens on `address` at a port of the system's choice, which is told.
struct Listener {
  int fd = -1;
  uint16_t port = 0;
};
Result<Listener> listen_anywhere(const std::string& address);
// Until this machine knows where `host` is; why it does not, when `timeout_s` is over.
Status wait_for_name(const std::string& host, double timeout_s);
// A connection, tried again until `timeout_s` is over.
Result<int> connect_to(const std::string& host, uint16_t port, double timeout_s);

}  // namespace aerie::dist
