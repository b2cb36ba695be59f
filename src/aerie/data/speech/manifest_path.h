// Where a path written in a manifest leads. Pure text except resolve_audio_path, which looks at the
// disk; call it when the file is about to be opened, not for every line at the start.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"

namespace aerie::data {

// Names of tar members: no "/" in a manifest called tarred_audio_manifest.json or
// .../sharded_manifests/manifest_<n>.json. They are left alone.
bool is_tar_member_name(std::string_view path, std::string_view manifest);

// What the file may be called, in order of preference: below the manifest's folder, then as written
// with "~" expanded. One candidate for absolute, long (255 characters and more) and tar paths.
std::vector<std::string> audio_path_candidates(std::string_view path, std::string_view manifest);

// `status` came of opening `path`, and what that names is not there or no file: the data is wrong,
// not the machine.
bool names_no_file(Env& env, const Status& status, const std::string& path);

// A regular file, or one that cannot be asked now: opening it will tell.
bool may_be_file(const Result<FileStat>& stat);

// The first candidate that is a regular file, else the last one.
std::string resolve_audio_path(Env& env, std::string_view path, std::string_view manifest);

// 255 characters and more: taken as written.
bool is_long_path(std::string_view path);

// manifest_filepath, noise_manifest: "a.json,b.json" means both. Blanks around names are kept, as
// they are legal in names.
std::vector<std::string> split_manifest_list(std::string_view text);

}  // namespace aerie::data
