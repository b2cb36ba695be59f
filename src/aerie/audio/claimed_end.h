// How much audio a container's header promises, to tell a recording that was cut from a short one.
// libsndfile quietly takes what is there. Internal to the folder.
#pragma once

#include <cstdint>
#include <optional>

#include "aerie/audio/byte_source.h"

namespace aerie::audio {

// Where the audio data should lie, in bytes of the file.
struct ClaimedData {
  int64_t begin = 0;
  int64_t bytes = 0;

  // Frames that are not there when `frames` are in what a file of `file_bytes` holds.
  int64_t missing_frames(int64_t frames, int64_t file_bytes) const;
};

// A 32-bit size that means "not known": programs that write to a pipe put the largest number, or
// 2^31 less their header, where the length belongs.
constexpr bool is_stream_size(int64_t size) {
  return size >= 0x7FFF0000;
}

// RIFF, RF64, W64, AIFF, CAF, AU and SPHERE. nullopt: another container, or one that does not say.
std::optional<ClaimedData> find_claimed_data(ByteSource& source);

}  // namespace aerie::audio
