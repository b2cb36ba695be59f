#include "aerie/dist/address.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/strings.h"

namespace aerie::dist {

namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> look_up(const std::string& host, uint16_t port, int type) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0)
    return unavailable(str_cat("the host '", host, "' is not known here: ", gai_strerror(error)))
        .with_hint("give a name that this machine can look up, or an address");
  return AddressList(found, &freeaddrinfo);
}

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  if (getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

// Of the first interface that is up and no loopback; IPv4 before IPv6. Empty: none.
std::string address_of_interface() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string best;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* at = all; at != nullptr && best.empty(); at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
      best = numeric(at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  freeifaddrs(all);
  return best;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || starts_with(address, "127.");
}

Result<std::string> address_towards(const std::string& host, uint16_t port, bool remote) {
  AERIE_ASSIGN_OR_RETURN(const AddressList list, look_up(host, port, SOCK_DGRAM));
  int error = 0;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    const int fd = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    // Sends nothing: the system only chooses a way.
    sockaddr_storage mine = {};
    socklen_t length = sizeof(mine);
    std::string address;
    if (connect(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0)
      address = numeric(reinterpret_cast<const sockaddr*>(&mine), length);
    else
      error = errno;
    close(fd);
    if (address.empty()) continue;
    if (remote && is_loopback(address))
      if (const std::string real = address_of_interface(); !real.empty()) return real;
    return address;
  }
  return unavailable(str_cat("there is no way from here to '", host, "': ", std::strerror(error)));
}

Result<Listener> listen_anywhere(const std::string& address) {
  AERIE_ASSIGN_OR_RETURN(const AddressList list, look_up(address, 0, SOCK_STREAM));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = list.get(); at != nullptr; at = at->ai_next) {
    Listener out;
    out.fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (out.fd < 0) continue;
    sockaddr_storage mine = {};
    socklen_t length = sizeof(mine);
    if (bind(out.fd, at->ai_addr, at->ai_addrlen) == 0 && listen(out.fd, SOMAXCONN) == 0 &&
        getsockname(out.fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0) {
      const uint16_t port = mine.ss_family == AF_INET
                                ? reinterpret_cast<sockaddr_in&>(mine).sin_port
                                : reinterpret_cast<sockaddr_in6&>(mine).sin6_port;
      out.port = ntohs(port);
      return out;
    }
    error = errno;
    close(out.fd);
  }
  return unavailable(str_cat("cannot listen on '", address, "': ", std::strerror(error)));
}

namespace {

// 0, or why there is no connection; waits for an answer until then.
int connect_one(int fd, const addrinfo& to, double deadline) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int error = connect(fd, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    const double left_s = std::clamp(deadline - Clock::real().monotonic_s(), 0.0, 5.0);
    pollfd polled{fd, POLLOUT, 0};
    socklen_t length = sizeof(error);
    if (poll(&polled, 1, static_cast<int>(left_s * 1e3) + 1) <= 0)
      error = ETIMEDOUT;
    else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
      error = errno;
  }
  fcntl(fd, F_SETFL, flags);
  return error;
}

}  // namespace

Status wait_for_name(const std::string& host, double timeout_s) {
  const double deadline = Clock::real().monotonic_s() + timeout_s;
  while (true) {
    const Status found = look_up(host, 0, SOCK_STREAM).status();
    if (found.ok() || Clock::real().monotonic_s() >= deadline) return found;
    usleep(100'000);
  }
}

Result<int> connect_to(const std::string& host, uint16_t port, double timeout_s) {
  const double deadline = Clock::real().monotonic_s() + timeout_s;
  Status unknown;
  int error = 0;
  do {
    // Names of other hosts may become known while they start.
    const Result<AddressList> list = look_up(host, port, SOCK_STREAM);
    unknown = list.status();
    for (const addrinfo* at = list.ok() ? list->get() : nullptr; at != nullptr; at = at->ai_next) {
      const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (fd < 0) continue;
      const int failed = connect_one(fd, *at, deadline);
      if (failed == 0) return fd;
      error = failed;
      close(fd);
    }
    usleep(100'000);
  } while (Clock::real().monotonic_s() < deadline);
  AERIE_RETURN_IF_ERROR(unknown);
  return unavailable(str_cat("cannot connect to ", host, ":", port, ": ", std::strerror(error)));
}

}  // namespace aerie::dist
