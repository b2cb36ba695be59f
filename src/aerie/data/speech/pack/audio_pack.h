// Decoded, resampled, cut audio in packs: what samples are found by, and how they become 16-bit
// samples (or FLAC, or floats).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/status.h"
#include "aerie/data/pack/pack_format.h"
#include "aerie/data/pack/pack_writer.h"

namespace aerie::data {

Result<PackEncoding> parse_pack_encoding(std::string_view text);  // "pcm16", "flac", "float32"
const char* pack_encoding_name(PackEncoding encoding);

// Where a sample comes from, as absolute names: a file, a list of files stacked as channels, or a
// member of an archive ("<archive>#<member>").
std::string pack_source(std::span<const std::string> paths);
std::string pack_tar_source(const std::string& archive, std::string_view member);

// `source` from one of the functions above. Offset and duration as in audio::Segment: values <= 0
// and NaN mean start and end.
PackKey pack_key(std::string_view source, double offset_s, double duration_s,
                 const audio::ChannelSelector& channels);

// Which reading options shape the samples; stored in every shard. Packs made with others are not
// used.
std::string pack_settings(const audio::ReadOptions& options);

// The view's samples as 16-bit integers of the returned unit, as a pack keeps them.
float quantize_pack_samples(const audio::AudioView& view, std::vector<int16_t>* out);

// Quantises to 16 bits (unless the encoding keeps floats) and encodes. Single-channel audio only.
// Samples beyond full scale are kept by scaling the whole sample down; 16-bit sources stay exact.
// Any thread.
Status encode_pack_item(const audio::AudioView& view, PackEncoding encoding, PackItem* item);

}  // namespace aerie::data
