// Strings of an index, one behind the other.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/index_format.h"

namespace aerie::nuscenes {

class StringPool {
 public:
  explicit StringPool(std::string& bytes) : bytes_(bytes) {}
  Result<index_format::StringRef> add(std::string_view text) {
    if (bytes_.size() + text.size() > std::numeric_limits<uint32_t>::max())
      return data_error("the tables' names and paths take more than 4 GiB");
    const index_format::StringRef out{static_cast<uint32_t>(bytes_.size()),
                                      static_cast<uint32_t>(text.size())};
    bytes_.append(text);
    return out;
  }

 private:
  std::string& bytes_;
};

}  // namespace aerie::nuscenes
