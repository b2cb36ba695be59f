#include "aerie/data/pack/pack_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <xxhash.h>

#include "aerie/base/path.h"

namespace aerie::data {
namespace {

Status damaged(const char* what) {
  return data_error(str_cat("damaged pack: ", what)).with_hint("delete the file and pack again");
}

}  // namespace

Result<PackShard> PackShard::open(const std::string& path, Env* env) {
  const auto load = [&]() -> Result<PackShard> {
    PackShard shard;
    shard.path_ = path;
    AERIE_ASSIGN_OR_RETURN(shard.file_, (env != nullptr ? *env : Env::real()).map_file(path));
    const std::string_view bytes = shard.file_.text();
    PackHead head;
    PackFooter footer;
    if (bytes.size() < sizeof(head) + sizeof(footer)) return damaged("too short");
    std::memcpy(&head, bytes.data(), sizeof(head));
    if (std::memcmp(head.magic, kPackMagic, sizeof(kPackMagic)) != 0)
      return data_error("not a pack file");
    if (head.version < kPackVersion || head.version > kBytesPackVersion)
      return unsupported(str_cat("pack of version ", head.version, "; this build reads ",
                                 kPackVersion, " to ", kBytesPackVersion));
    constexpr PackEncoding kLast[] = {PackEncoding::kFlac, PackEncoding::kFloat32,
                                      PackEncoding::kBytes};
    const auto last_encoding = static_cast<uint32_t>(kLast[head.version - kPackVersion]);
    const bool plain_bytes = head.encoding == static_cast<uint32_t>(PackEncoding::kBytes);
    std::memcpy(&footer, bytes.data() + bytes.size() - sizeof(footer), sizeof(footer));
    if (std::memcmp(footer.magic, kPackMagic, sizeof(kPackMagic)) != 0 ||
        XXH3_64bits(&footer, offsetof(PackFooter, footer_hash)) != footer.footer_hash)
      return damaged("its end");
    const uint64_t index_end = bytes.size() - sizeof(footer);
    // The sizes must add up to the file exactly; each is checked so that no sum overflows.
    const uint64_t index_bytes = footer.num_entries * sizeof(PackEntry);
    if (footer.num_entries > index_end / sizeof(PackEntry) || footer.index_offset > index_end ||
        footer.names_bytes > index_end || footer.settings_bytes > index_end ||
        footer.index_offset + index_bytes + footer.names_bytes + footer.settings_bytes !=
            index_end ||
        footer.index_offset % kPackAlignment != 0 || footer.index_offset < sizeof(head))
      return damaged("its sizes");
    if (XXH3_64bits(bytes.data() + footer.index_offset, index_end - footer.index_offset) !=
        footer.index_hash)
      return damaged("its index");
    if (footer.version != head.version || footer.encoding != head.encoding ||
        footer.encoding > last_encoding || footer.sample_rate != head.sample_rate ||
        (footer.sample_rate == 0) != plain_bytes || footer.sample_rate > 10'000'000)
      return damaged("its header");
    shard.encoding_ = static_cast<PackEncoding>(footer.encoding);
    shard.sample_rate_ = static_cast<int>(footer.sample_rate);
    shard.total_frames_ = footer.total_frames;
    shard.num_entries_ = footer.num_entries;
    shard.entries_ = reinterpret_cast<const PackEntry*>(bytes.data() + footer.index_offset);
    shard.names_ = bytes.substr(footer.index_offset + index_bytes, footer.names_bytes);
    shard.settings_ = bytes.substr(index_end - footer.settings_bytes, footer.settings_bytes);
    uint32_t name_before = 0;
    for (size_t i = 0; i < shard.num_entries_; ++i) {
      const PackEntry& entry = shard.entries_[i];
      if (entry.offset < sizeof(head) || entry.offset % kPackAlignment != 0 ||
          entry.offset > footer.index_offset || entry.bytes > footer.index_offset - entry.offset ||
          entry.name_offset < name_before || entry.name_offset > footer.names_bytes ||
          !std::isfinite(entry.scale))
        return damaged("an entry");
      const bool ints = entry.bytes % 2 == 0 && entry.frames == entry.bytes / 2;
      const bool floats = entry.bytes % 4 == 0 && entry.frames == entry.bytes / 4;
      if ((shard.encoding_ == PackEncoding::kPcm16 && !ints) ||
          (shard.encoding_ == PackEncoding::kFloat32 && !ints && !floats) ||
          (plain_bytes && entry.frames != entry.bytes))
        return damaged("an entry's length");
      name_before = entry.name_offset;
    }
    return shard;
  };
  Result<PackShard> shard = load();
  if (!shard.ok()) return shard.status().with_context(path);
  return shard;
}

std::string_view PackShard::name(size_t i) const {
  const size_t begin = entries_[i].name_offset;
  const size_t end = i + 1 < num_entries_ ? entries_[i + 1].name_offset : names_.size();
  return names_.substr(begin, end - begin);
}

std::span<const uint8_t> PackShard::data(size_t i) const {
  return {reinterpret_cast<const uint8_t*>(file_.data()) + entries_[i].offset, entries_[i].bytes};
}

Result<std::shared_ptr<const PackSet>> PackSet::open(const std::string& dir,
                                                     const Options& options) {
  Env& env = options.env != nullptr ? *options.env : Env::real();
  auto set = std::make_shared<PackSet>();
  std::vector<DirEntry> entries;
  if (env.exists(dir)) {
    AERIE_ASSIGN_OR_RETURN(entries, env.list_dir(dir));
  }
  for (const DirEntry& entry : entries) {
    if (!starts_with(entry.name, "pack_") || !ends_with(entry.name, kPackSuffix)) continue;
    AERIE_ASSIGN_OR_RETURN(PackShard shard, PackShard::open(join_path(dir, entry.name), &env));
    const std::string& settings = options.settings.empty() && !set->shards_.empty()
                                      ? std::string(set->shards_[0].settings())
                                      : options.settings;
    const bool other_settings = !settings.empty() && shard.settings() != settings;
    const bool other_rate = options.sample_rate != 0 && shard.sample_rate() != options.sample_rate;
    const bool rounded = options.exact_only && shard.encoding() != PackEncoding::kFloat32;
    if (rounded || (options.skip_others && (other_settings || other_rate))) {
      ++set->num_skipped_;
      continue;
    }
    if (other_settings)
      return data_error(str_cat("packed with other settings: ", shard.settings()))
          .with_context(shard.path())
          .with_hint("use another cache folder, or pack again");
    if (other_rate)
      return data_error(str_cat("packed at ", shard.sample_rate(), " Hz, ", options.sample_rate,
                                " wanted"))
          .with_context(shard.path());
    set->shards_.push_back(std::move(shard));
  }
  size_t total = 0;
  for (const PackShard& shard : set->shards_) total += shard.size();
  set->table_.reserve(total);
  for (size_t s = 0; s < set->shards_.size(); ++s)
    for (size_t i = 0; i < set->shards_[s].size(); ++i)
      set->table_.push_back(
          {set->shards_[s].entry(i).key, {static_cast<uint32_t>(s), static_cast<uint32_t>(i)}});
  // Later shards first among equals, so that unique() keeps them.
  std::sort(set->table_.begin(), set->table_.end(), [](const Row& a, const Row& b) {
    if (a.key != b.key) return a.key < b.key;
    return a.at.shard != b.at.shard ? a.at.shard > b.at.shard : a.at.entry > b.at.entry;
  });
  set->table_.erase(std::unique(set->table_.begin(), set->table_.end(),
                                [](const Row& a, const Row& b) { return a.key == b.key; }),
                    set->table_.end());
  return std::shared_ptr<const PackSet>(std::move(set));
}

double PackSet::total_s() const {
  double total = 0.0;
  for (const PackShard& shard : shards_)
    if (shard.sample_rate() > 0)
      total += static_cast<double>(shard.total_frames()) / shard.sample_rate();
  return total;
}

std::optional<PackLocation> PackSet::find(const PackKey& key) const {
  const auto it = std::lower_bound(table_.begin(), table_.end(), key,
                                   [](const Row& row, const PackKey& k) { return row.key < k; });
  if (it == table_.end() || it->key != key) return std::nullopt;
  return it->at;
}

Result<std::span<const uint8_t>> PackSet::verified(PackLocation at) const {
  AERIE_CHECK(at.shard < shards_.size() && at.entry < shards_[at.shard].size(),
              "no such packed sample");
  const PackShard& shard = shards_[at.shard];
  const std::span<const uint8_t> bytes = shard.data(at.entry);
  if (XXH3_64bits(bytes.data(), bytes.size()) != shard.entry(at.entry).data_hash)
    return damaged("a sample's checksum")
        .with_context(str_cat(shard.path(), " ", shard.name(at.entry)));
  return bytes;
}

}  // namespace aerie::data
