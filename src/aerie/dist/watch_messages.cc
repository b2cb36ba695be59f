// The messages of watch.h: what ranks say to each other, and what users read of it.
#include <algorithm>

#include "aerie/base/printable.h"
#include "aerie/dist/watch_parts.h"

namespace aerie::dist {

std::string Watch::describe(int rank) const {
  const auto at = static_cast<size_t>(rank);
  return str_cat("rank ", rank, " on ",
                 at < options_.hosts.size() ? options_.hosts[at] : std::string("an unknown host"));
}

std::string Watch::last_words(int rank) const {
  const std::vector<std::string>& lines =
      rank == options_.rank ? lines_ : ranks_[static_cast<size_t>(rank)].lines;
  if (lines.empty()) return "";
  std::string out = str_cat("\nlast lines of rank ", rank, ":");
  for (const std::string& line : lines) out += str_cat("\n  ", printable_lines(line));
  return out;
}

// Ranks that are elsewhere than those who wait: what a collective that timed out waited for.
std::string Watch::who_else(double now) const {
  std::vector<std::string> out;
  for (int rank = 0; rank < options_.size && out.size() < 8; ++rank) {
    const Rank& at = ranks_[static_cast<size_t>(rank)];
    const Phase phase = rank == options_.rank ? told_phase() : at.phase;
    const double since = rank == options_.rank ? phase_since_.load() : at.phase_since;
    if (phase == Phase::kAllReduce || at.left) continue;
    out.push_back(
        str_cat("rank ", rank, " in ", phase_name(phase), " for ", rounded(now - since), " s"));
  }
  return out.empty() ? "" : str_cat("; ", join(out, ", "));
}

void Watch::take_message(Peer& peer, std::string_view message, double now) {
  const char kind = message.empty() ? '\0' : message.front();
  if (!message.empty()) message.remove_prefix(1);
  if (peer.rank < 0) {
    std::string token;
    int32_t rank = 0;
    if (kind != kHello || !take_text(message, token) || token != options_.token ||
        !take(message, rank) || rank <= 0 || rank >= options_.size)
      return closed(peer);
    peer.rank = rank;
    ranks_[static_cast<size_t>(rank)].heard = now;
    if (!told_.empty()) peer.send(told_);
    return;
  }
  Rank& rank = ranks_[static_cast<size_t>(peer.rank)];
  rank.heard = now;
  int32_t phase = 0, code = 0;
  double in_phase = 0;
  std::string text;
  switch (kind) {
    case kBeat:
      if (!take(message, phase) || !take(message, in_phase) || phase < 0 || phase >= kNumPhases)
        return;
      rank.phase = static_cast<Phase>(phase);
      rank.phase_since = now - in_phase;
      if (take_text(message, text)) rank.lines = split(text, '\n');
      return;
    case kLeave:
      rank.left = true;
      return;
    case kFail:
      if (!take(message, code) || !take(message, phase) || !take(message, in_phase) ||
          !take_text(message, text) || phase < 0 || phase >= kNumPhases || code <= 0 ||
          code > static_cast<int32_t>(StatusCode::kInternal))
        return;
      rank.phase = static_cast<Phase>(phase);
      rank.left = true;
      return lose({RankLoss::Kind::kFailed, peer.rank,
                   Status(static_cast<StatusCode>(code),
                          str_cat(describe(peer.rank), " failed in phase ", phase_name(rank.phase),
                                  ": ", text, who_else(now), last_words(peer.rank)))});
    case kLoss: {
      int32_t how = 0, lost = 0;
      if (peer.rank != 0 || !take(message, how) || !take(message, lost) || !take(message, code) ||
          !take_text(message, text) || how < 0 || how > 2 || lost < 0 || lost >= options_.size ||
          code <= 0 || code > static_cast<int32_t>(StatusCode::kInternal))
        return;
      rank.left = true;  // rank 0 ends too
      return lose(
          {static_cast<RankLoss::Kind>(how), lost, Status(static_cast<StatusCode>(code), text)});
    }
    default:
      return;
  }
}

void Watch::beat(double now) {
  const Phase told = told_phase();
  if (told != Phase::kForward && phase() == Phase::kForward && options_.device_phase) {
    options_.device_phase(told);
    // What the host has said meanwhile is newer.
    if (phase() != Phase::kForward) options_.device_phase(phase());
  }
  std::string message(1, kBeat);
  put(message, static_cast<int32_t>(told));
  put(message, now - phase_since_.load(std::memory_order_relaxed));
  if (lines_new_) put_text(message, join(lines_, "\n"));
  bool all = true;
  for (const auto& peer : peers_) {
    if (peer->rank < 0 || peer->out.size() > kMaxUnsent) {
      all = false;
      continue;
    }
    peer->send(message);
  }
  // Lines go out once, when everybody who will read them is there.
  const size_t expected = options_.rank == 0 ? ranks_.size() - 1 : 1;
  if (all && peers_.size() >= expected) lines_new_ = false;
}

void Watch::tell(const RankLoss& loss) {
  told_.assign(1, kLoss);
  put(told_, static_cast<int32_t>(loss.kind));
  put(told_, static_cast<int32_t>(loss.rank));
  put(told_, static_cast<int32_t>(loss.status.code()));
  put_text(told_, loss.status.message().substr(0, kMaxMessage / 2));
  for (const auto& peer : peers_)
    if (peer->rank > 0 && peer->rank != loss.rank) peer->send(told_);
}

}  // namespace aerie::dist
