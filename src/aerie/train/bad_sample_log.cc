#include "aerie/train/bad_sample_log.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::train {

namespace {
constexpr uint64_t kMaxBytes = 256u << 20;
}

BadSampleLog::BadSampleLog(Env& env, std::string path, bool writes)
    : env_(env), path_(std::move(path)), writes_(writes) {
  const auto text = env_.read_file(path_, kMaxBytes);
  if (!text.ok()) return;
  for (const std::string& line : split(*text, '\n')) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    const auto is_text = [&](const char* name) {
      return json.contains(name) && json[name].is_string();
    };
    if (!json.contains("sample_id") || !json["sample_id"].is_number_unsigned() ||
        !is_text("path") || !is_text("reason"))
      continue;
    data::BadSample bad;
    bad.sample_id = json["sample_id"].get<uint32_t>();
    bad.place = json["path"].get<std::string>();
    bad.reason = json["reason"].get<std::string>();
    if (json.contains("epoch") && json["epoch"].is_number_unsigned())
      bad.epoch = json["epoch"].get<uint32_t>();
    if (places_.insert(bad.place).second) earlier_.push_back(std::move(bad));
  }
}

void BadSampleLog::add(const data::BadSample& bad) {
  if (!places_.insert(bad.place).second || !writes_) return;
  nlohmann::ordered_json json;
  json["sample_id"] = bad.sample_id;
  json["path"] = bad.place;
  json["reason"] = bad.reason;
  json["epoch"] = bad.epoch;
  auto file = env_.open_writable(path_, WriteMode::kAppend);
  if (file.ok())
    (void)(*file)->append(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                          "\n");
}

}  // namespace aerie::train
