// How members of a tarred data set become samples, and how samples meet their manifest lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/tar/tar_index.h"

namespace aerie::tar {

// "dir/utt1.seg.WAV" -> key "dir/utt1", extension "seg.wav" (lower case). nullopt for names that
// are no sample: without a ".", with nothing before the first "." of the last component (hidden
// files), or below a top-level "__meta__".
struct MemberKey {
  std::string_view key;
  std::string extension;
};
std::optional<MemberKey> split_member_name(std::string_view name);

// Extensions that count as audio, in order of preference: wav, mp3, flac, opus, then the names of
// libsndfile's formats.
const std::vector<std::string>& audio_extensions();

struct TarSample {
  std::string_view key;  // points into the index
  std::string_view id;   // last component of key: what manifests are joined by
  uint32_t first_member = 0;
  uint32_t num_members = 0;
  uint32_t audio_member = 0;
};
// Consecutive members with one key form a sample. Errors: an extension twice in one sample, a
// sample without audio. `index` must outlive the result.
Result<std::vector<TarSample>> group_samples(const TarIndex& index);

// The id a manifest path is joined by: last component without its last extension.
std::string_view manifest_id(std::string_view audio_path);
// "utt-sub3" -> "utt" (segments beyond the first of one file, as NeMo's converter names them);
// other ids are returned unchanged. With the extension still on: strip_sub("a-sub1.wav") = "a.wav".
std::string strip_sub(std::string_view name);
bool has_sub(std::string_view name);

}  // namespace aerie::tar
