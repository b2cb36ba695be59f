// libFuzzer target: arbitrary bytes as an archive, as an index file and as a shard pattern.
#include <cstdint>
#include <string_view>
#include <vector>

#include "aerie/tar/brace_expand.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_index.h"
#include "aerie/tar/tar_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::tar;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] & 3) {
    case 0: {
      if (const auto index = TarIndex::deserialize(text); index.ok()) (void)group_samples(*index);
      return 0;
    }
    case 1: {
      if (text.size() < 200) (void)expand_shard_pattern(text, 4096);
      return 0;
    }
    default:
      break;
  }
  TarOptions options;
  options.max_expansion = 100;
  options.require_end_marker = (data[0] & 4) != 0;
  const auto stream = TarStream::open_memory({data + 1, size - 1}, "fuzz", options);
  if (!stream.ok()) return 0;
  std::vector<uint8_t> bytes;
  while (true) {
    const auto member = (*stream)->next();
    if (!member.ok() || !member->has_value()) return 0;
    (void)split_member_name((*member)->name);
    (void)manifest_id((*member)->name);
    (void)strip_sub((*member)->name);
    if ((data[0] & 8) != 0 && !(*stream)->read(&bytes).ok()) return 0;
  }
}
