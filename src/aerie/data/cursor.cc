#include "aerie/data/cursor.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"

namespace aerie::data {

namespace {

constexpr size_t kMaxBytes = 64 << 10;

Status broken(std::string_view what) {
  return data_error(str_cat("data cursor: ", what));
}

Status read_number(const nlohmann::json& object, const char* key, uint64_t max, uint64_t& out) {
  const auto found = object.find(key);
  if (found == object.end()) return broken(str_cat("'", key, "' is missing"));
  if (!found->is_number_unsigned()) return broken(str_cat("'", key, "' is no natural number"));
  out = found->get<uint64_t>();
  if (out > max) return broken(str_cat("'", key, "' is too large"));
  return ok_status();
}

template <typename T>
Status read_number(const nlohmann::json& object, const char* key, T& out) {
  uint64_t value = 0;
  AERIE_RETURN_IF_ERROR(read_number(object, key, std::numeric_limits<T>::max(), value));
  out = static_cast<T>(value);
  return ok_status();
}

Status read_hex(const nlohmann::json& object, const char* key, uint64_t& out) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return broken(str_cat("'", key, "' is missing"));
  const std::string& text = found->get_ref<const std::string&>();
  if (text.size() != 16) return broken(str_cat("'", key, "' is no hash"));
  out = 0;
  for (const char c : text) {
    uint64_t digit;
    if (c >= '0' && c <= '9')
      digit = static_cast<uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f')
      digit = static_cast<uint64_t>(c - 'a') + 10;
    else
      return broken(str_cat("'", key, "' is no hash"));
    out = out << 4 | digit;
  }
  return ok_status();
}

}  // namespace

std::string Cursor::to_json() const {
  nlohmann::ordered_json out;
  out["kind"] = "aerie-data-cursor";
  out["version"] = kVersion;
  out["epoch"] = epoch;
  out["step"] = step;
  out["micro"] = micro;
  out["seed"] = hex64(seed);
  out["virtual_ranks"] = virtual_ranks;
  out["batch_size"] = batch_size;
  out["order"] = hex64(order_fingerprint);
  out["data"] = hex64(data_fingerprint);
  out["samples_done"] = samples_done;
  out["bad_samples"] = bad_samples;
  return out.dump();
}

Result<Cursor> Cursor::parse(std::string_view text) {
  if (text.size() > kMaxBytes) return broken("too large");
  const nlohmann::json object = nlohmann::json::parse(text, nullptr, false);
  if (object.is_discarded() || !object.is_object()) return broken("not a JSON object");
  const auto kind = object.find("kind");
  if (kind == object.end() || !kind->is_string() ||
      kind->get_ref<const std::string&>() != "aerie-data-cursor")
    return broken("not a data cursor");
  uint64_t version = 0;
  AERIE_RETURN_IF_ERROR(read_number(object, "version", 1u << 20, version));
  if (version != kVersion)
    return unsupported(
        str_cat("data cursor of version ", version, "; this program knows version ", kVersion));
  Cursor out;
  AERIE_RETURN_IF_ERROR(read_number(object, "epoch", out.epoch));
  AERIE_RETURN_IF_ERROR(read_number(object, "step", out.step));
  AERIE_RETURN_IF_ERROR(read_number(object, "micro", out.micro));
  AERIE_RETURN_IF_ERROR(read_hex(object, "seed", out.seed));
  AERIE_RETURN_IF_ERROR(read_number(object, "virtual_ranks", out.virtual_ranks));
  AERIE_RETURN_IF_ERROR(read_number(object, "batch_size", out.batch_size));
  AERIE_RETURN_IF_ERROR(read_hex(object, "order", out.order_fingerprint));
  AERIE_RETURN_IF_ERROR(read_hex(object, "data", out.data_fingerprint));
  AERIE_RETURN_IF_ERROR(read_number(object, "samples_done", out.samples_done));
  AERIE_RETURN_IF_ERROR(read_number(object, "bad_samples", out.bad_samples));
  if (out.virtual_ranks == 0 || out.batch_size == 0) return broken("a size is 0");
  return out;
}

}  // namespace aerie::data
