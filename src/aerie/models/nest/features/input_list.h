// What `aerie features` works through: recordings from a manifest, a folder or a single file, and
// the names of the files their features go into. Free of torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest.h"

namespace aerie::features {

struct Recording {
  std::vector<std::string> paths;  // one, or several files stacked as channels
  bool is_list = false;
  std::string place;  // "train.json:17", or the path
  std::string line;   // the manifest's JSON; empty for folders and files
};

struct InputList {
  std::vector<Recording> recordings;
  // Lines with an offset: whole files are read all the same.
  uint64_t num_with_offset = 0;
};

// A manifest that has lines; nothing is written beside it.
Result<data::Manifest> open_manifest(Env& env, const std::string& path);

// `input` is a manifest (*.json, *.jsonl), a folder (searched with all below it, links to folders
// not followed; `type` is an extension, several separated by commas) or an audio file. Order:
// the manifest's, or by path. Paths of a manifest are resolved as for training.
Result<InputList> list_input(Env& env, const std::string& input, const std::string& type);

// NeMo's name of a recording's features, without ".npy": the path with '/' and '.' replaced by '_',
// its end when that is too long. NeMo keeps 256 characters, which with ".npy" no file system takes;
// ours keeps 251 bytes, never half a UTF-8 character.
std::string feature_stem(std::string_view path);

// Stems for all recordings: equal for equal paths, else different. Paths that differ but have one
// stem ("a/b.wav", "a_b.wav": NeMo overwrites the first) are told apart by a number at the end.
std::vector<std::string> feature_stems(const std::vector<Recording>& recordings);

// "all", "last", or comma-separated numbers from 0 (negative ones count from the end), in the given
// order.
Result<std::vector<int64_t>> parse_layers(const std::string& text, int64_t num_layers);

}  // namespace aerie::features
