// Tokens of a table and the rows they stand in: sorted once, then looked up. Sorting, not hashing:
// no choice of tokens makes it slow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/json_rows.h"
#include "aerie/data/nuscenes/tables/token.h"

namespace aerie::nuscenes {

class TokenTable {
 public:
  static constexpr uint32_t kNone = 0xFFFFFFFFu;

  void reserve(size_t count) { entries_.reserve(count); }
  void add(const Token& token, uint32_t row) { entries_.push_back({token, row}); }
  // Before the first find(). A token that stands twice is an error that names both rows.
  Status finish() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.token != b.token ? a.token < b.token : a.row < b.row;
    });
    const Entry* second = nullptr;  // of the pair whose later row comes first
    for (size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].token == entries_[i - 1].token &&
          (second == nullptr || entries_[i].row < second->row))
        second = &entries_[i];
    }
    if (second == nullptr) return ok_status();
    return data_error(str_cat(to_string(second->token), " is the token of row ", (second - 1)->row,
                              " too"))
        .with_context("key 'token'")
        .with_context(row_name(second->row));
  }
  // The row, or kNone.
  uint32_t find(const Token& token) const {
    const auto found = std::lower_bound(
        entries_.begin(), entries_.end(), token,
        [](const Entry& entry, const Token& wanted) { return entry.token < wanted; });
    return found != entries_.end() && found->token == token ? found->row : kNone;
  }
  size_t size() const { return entries_.size(); }
  void clear() { std::vector<Entry>().swap(entries_); }

 private:
  struct Entry {
    Token token;
    uint32_t row;
  };
  std::vector<Entry> entries_;
};

}  // namespace aerie::nuscenes
