#include "aerie/data/speech/pack/pack_reader.h"

#include <xxhash.h>

namespace aerie::data {
namespace {

Status damaged(const char* what) {
  return data_error(str_cat("damaged pack: ", what)).with_hint("delete the file and pack again");
}

audio::ReadOptions flac_options() {
  audio::ReadOptions options;
  options.sample_rate = 0;
  options.prefer_int16 = true;
  return options;
}

}  // namespace

PackReader::PackReader(std::shared_ptr<const PackSet> set, const Options& options)
    : set_(std::move(set)), options_(options), flac_(flac_options()) {}
PackReader::~PackReader() = default;

Result<audio::AudioView> PackReader::read(PackLocation at) {
  AERIE_CHECK(at.shard < set_->num_shards() && at.entry < set_->shard(at.shard).size(),
              "no such packed sample");
  const PackShard& shard = set_->shard(at.shard);
  const PackEntry& entry = shard.entry(at.entry);
  if (shard.encoding() == PackEncoding::kBytes)
    return data_error("holds files as they are, not audio").with_context(shard.path());
  const std::span<const uint8_t> bytes = shard.data(at.entry);
  const auto context = [&] { return str_cat(shard.path(), " ", shard.name(at.entry)); };
  if (options_.verify && XXH3_64bits(bytes.data(), bytes.size()) != entry.data_hash)
    return damaged("a sample's checksum").with_context(context());
  audio::AudioView view;
  view.channels = 1;
  view.sample_rate = shard.sample_rate();
  view.frames = static_cast<int64_t>(entry.frames);
  view.bytes_read = static_cast<int64_t>(entry.bytes);
  view.source.codec =
      shard.encoding() == PackEncoding::kFlac ? audio::Codec::kFlac : audio::Codec::kWavPcm;
  view.source.sample_rate = view.sample_rate;
  view.source.channels = 1;
  const bool floats = shard.encoding() == PackEncoding::kFloat32 &&
                      entry.bytes == entry.frames * sizeof(float) && entry.frames > 0;
  view.source.bits_per_sample = floats ? 32 : 16;
  view.source.frames = view.frames;
  view.source.bytes = view.bytes_read;
  if (view.frames == 0) return view;
  if (floats) {
    view.samples = reinterpret_cast<const float*>(bytes.data());
    return view;
  }
  if (shard.encoding() == PackEncoding::kFlac) {
    Result<audio::AudioView> decoded = flac_.read_memory(bytes, "packed FLAC");
    if (!decoded.ok()) return decoded.status().with_context(context());
    if (decoded->frames != view.frames || decoded->pcm16 == nullptr)
      return damaged("a sample's length").with_context(context());
    view.pcm16 = decoded->pcm16;
  } else {
    view.pcm16 = reinterpret_cast<const int16_t*>(bytes.data());
  }
  if (options_.prefer_int16 && entry.scale == kPackUnit) return view;
  floats_.resize(static_cast<size_t>(view.frames));
  for (int64_t i = 0; i < view.frames; ++i)
    floats_[static_cast<size_t>(i)] = static_cast<float>(view.pcm16[i]) * entry.scale;
  view.pcm16 = nullptr;
  view.samples = floats_.data();
  return view;
}

}  // namespace aerie::data
