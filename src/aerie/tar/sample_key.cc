#include "aerie/tar/sample_key.h"

#include <algorithm>

#include "aerie/base/strings.h"

namespace aerie::tar {
namespace {

std::string_view last_component(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

// Position of "-sub<digits>" that ends `stem`, or npos; something must stand before it.
size_t find_sub(std::string_view stem) {
  size_t digits = stem.size();
  while (digits > 0 && stem[digits - 1] >= '0' && stem[digits - 1] <= '9') --digits;
  if (digits == stem.size() || digits < 5 || stem.substr(digits - 4, 4) != "-sub" ||
      stem[digits - 5] == '/')
    return std::string_view::npos;
  return digits - 4;
}

// Splits off the last extension (with its dot) of the last component.
size_t stem_size(std::string_view name) {
  const std::string_view last = last_component(name);
  const size_t dot = last.rfind('.');
  // A leading dot starts a hidden name, not an extension.
  if (dot == std::string_view::npos || last.find_first_not_of('.') > dot) return name.size();
  return name.size() - last.size() + dot;
}

}  // namespace

std::optional<MemberKey> split_member_name(std::string_view name) {
  const std::string_view first = name.substr(0, name.find('/'));
  if (first.size() >= 4 && starts_with(first, "__") && ends_with(first, "__")) return std::nullopt;
  const std::string_view last = last_component(name);
  const size_t dot = last.find('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  const size_t key_size = name.size() - last.size() + dot;
  return MemberKey{name.substr(0, key_size), to_lower(name.substr(key_size + 1))};
}

const std::vector<std::string>& audio_extensions() {
  static const std::vector<std::string> kExtensions = {
      "wav", "mp3",  "flac",  "opus",  "aiff", "au",   "avr",   "caf", "htk",
      "svx", "mat4", "mat5",  "mpc2k", "ogg",  "paf",  "pvf",   "raw", "rf64",
      "sd2", "sds",  "ircam", "voc",   "w64",  "nist", "wavex", "wve", "xi"};
  return kExtensions;
}

Result<std::vector<TarSample>> group_samples(const TarIndex& index) {
  const std::vector<std::string>& audio = audio_extensions();
  std::vector<TarSample> samples;
  std::vector<std::string> extensions;  // of the sample being collected
  std::vector<uint32_t> members;
  const auto finish = [&]() -> Status {
    if (members.empty()) return ok_status();
    TarSample& sample = samples.back();
    sample.num_members = members.back() - members.front() + 1;
    for (const std::string& wanted : audio) {
      const auto it = std::find(extensions.begin(), extensions.end(), wanted);
      if (it == extensions.end()) continue;
      sample.audio_member = members[static_cast<size_t>(it - extensions.begin())];
      return ok_status();
    }
    return data_error(str_cat("sample '", sample.key,
                              "' has no audio (members: ", join(extensions, ", "), ")"))
        .with_hint(
            "the extension counts from the first dot: names such as a.b.wav are not audio 'a.b'");
  };
  for (size_t i = 0; i < index.size(); ++i) {
    const std::optional<MemberKey> key = split_member_name(index.name(i));
    if (!key) continue;
    if (samples.empty() || samples.back().key != key->key) {
      AERIE_RETURN_IF_ERROR(finish());
      extensions.clear();
      members.clear();
      TarSample sample;
      sample.key = key->key;
      sample.id = last_component(key->key);
      sample.first_member = static_cast<uint32_t>(i);
      samples.push_back(sample);
    }
    if (std::find(extensions.begin(), extensions.end(), key->extension) != extensions.end())
      return data_error(str_cat("member '", index.name(i), "' repeats the extension '",
                                key->extension, "' of its sample"));
    extensions.push_back(key->extension);
    members.push_back(static_cast<uint32_t>(i));
  }
  AERIE_RETURN_IF_ERROR(finish());
  return samples;
}

std::string_view manifest_id(std::string_view audio_path) {
  const std::string_view stem = audio_path.substr(0, stem_size(audio_path));
  return last_component(stem);
}

std::string strip_sub(std::string_view name) {
  const size_t stem = stem_size(name);
  const size_t sub = find_sub(name.substr(0, stem));
  if (sub == std::string_view::npos) return std::string(name);
  return str_cat(name.substr(0, sub), name.substr(stem));
}

bool has_sub(std::string_view name) {
  return find_sub(name.substr(0, stem_size(name))) != std::string_view::npos;
}

}  // namespace aerie::tar
