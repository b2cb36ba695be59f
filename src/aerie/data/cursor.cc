#include "aerie/data/cursor.h"

#include <limits>

#include <nlohmann/json.hpp>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"

namespace aerie::data {

namespace {

constexpr const char* kLhotseName = "lhotse";
constexpr size_t kMaxBytes = 8 << 20;
constexpr size_t kMaxParts = 1000;
constexpr size_t kMaxList = 100'000;

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

using Json = nlohmann::ordered_json;

template <typename T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json batching_json(const Batching& batching) {
  return {{"batch_size", optional_json(batching.batch_size)},
          {"shuffle_n", optional_json(batching.shuffle_n)},
          {"drop_last", batching.drop_last},
          {"bucketing_batch_size", batching.bucketing_batch_size},
          {"bucketing_batch_size_is_list", batching.bucketing_batch_size_is_list},
          {"batch_duration", optional_json(batching.batch_duration)},
          {"quadratic_duration", optional_json(batching.quadratic_duration)},
          {"use_bucketing", batching.use_bucketing},
          {"num_buckets", batching.num_buckets},
          {"bucket_duration_bins", batching.bucket_duration_bins},
          {"bucket_batch_size", batching.bucket_batch_size}};
}

bool read(const nlohmann::json& value, int64_t& out) {
  if (!value.is_number_integer()) return false;
  out = value.get<int64_t>();
  return true;
}
bool read(const nlohmann::json& value, double& out) {
  if (!value.is_number()) return false;
  out = value.get<double>();
  return true;
}
bool read(const nlohmann::json& value, bool& out) {
  if (!value.is_boolean()) return false;
  out = value.get<bool>();
  return true;
}
template <typename T>
bool read(const nlohmann::json& value, std::optional<T>& out) {
  if (value.is_null()) return true;
  return read(value, out.emplace());
}
template <typename T>
bool read(const nlohmann::json& value, std::vector<T>& out) {
  if (!value.is_array() || value.size() > kMaxList) return false;
  for (const auto& item : value)
    if (!read(item, out.emplace_back())) return false;
  return true;
}

Result<Batching> parse_batching(const nlohmann::json& object) {
  if (!object.is_object()) return broken("'batching' is no object");
  Batching out;
  const auto field = [&](const char* key, auto& value) {
    const auto found = object.find(key);
    return found != object.end() && read(*found, value) ? ok_status()
                                                        : broken(str_cat("'batching.", key, "'"));
  };
  AERIE_RETURN_IF_ERROR(field("batch_size", out.batch_size));
  AERIE_RETURN_IF_ERROR(field("shuffle_n", out.shuffle_n));
  AERIE_RETURN_IF_ERROR(field("drop_last", out.drop_last));
  AERIE_RETURN_IF_ERROR(field("bucketing_batch_size", out.bucketing_batch_size));
  AERIE_RETURN_IF_ERROR(field("bucketing_batch_size_is_list", out.bucketing_batch_size_is_list));
  AERIE_RETURN_IF_ERROR(field("batch_duration", out.batch_duration));
  AERIE_RETURN_IF_ERROR(field("quadratic_duration", out.quadratic_duration));
  AERIE_RETURN_IF_ERROR(field("use_bucketing", out.use_bucketing));
  AERIE_RETURN_IF_ERROR(field("num_buckets", out.num_buckets));
  AERIE_RETURN_IF_ERROR(field("bucket_duration_bins", out.bucket_duration_bins));
  AERIE_RETURN_IF_ERROR(field("bucket_batch_size", out.bucket_batch_size));
  return out;
}

void write_part(const Cursor::Part& part, Json& out) {
  out["step"] = part.step;
  out["micro"] = part.micro;
  out["virtual_ranks"] = part.virtual_ranks;
  if (part.lanes_per_rank > 1) out["lanes_per_rank"] = part.lanes_per_rank;
  out["batch_size"] = part.batch_size;
  out["order"] = hex64(part.order_fingerprint);
  if (part.batching) out["batching"] = batching_json(*part.batching);
}

Result<Cursor::Part> parse_part(const nlohmann::json& object) {
  Cursor::Part out;
  AERIE_RETURN_IF_ERROR(read_number(object, "step", out.step));
  AERIE_RETURN_IF_ERROR(read_number(object, "micro", out.micro));
  AERIE_RETURN_IF_ERROR(read_number(object, "virtual_ranks", out.virtual_ranks));
  if (object.contains("lanes_per_rank")) {
    AERIE_RETURN_IF_ERROR(read_number(object, "lanes_per_rank", out.lanes_per_rank));
    if (out.lanes_per_rank == 0 || out.lanes_per_rank > out.virtual_ranks)
      return broken("lanes_per_rank");
  }
  AERIE_RETURN_IF_ERROR(read_number(object, "batch_size", out.batch_size));
  AERIE_RETURN_IF_ERROR(read_hex(object, "order", out.order_fingerprint));
  if (out.virtual_ranks == 0 || out.batch_size == 0) return broken("a size is 0");
  if (const auto found = object.find("batching"); found != object.end()) {
    AERIE_ASSIGN_OR_RETURN(out.batching, parse_batching(*found));
  }
  return out;
}

}  // namespace

std::string Cursor::to_json() const {
  Json out;
  out["kind"] = "aerie-data-cursor";
  out["version"] = before.empty() ? 1 : kVersion;
  out["epoch"] = epoch;
  out["seed"] = hex64(seed);
  write_part(now, out);
  if (!before.empty()) {
    out["before"] = Json::array();
    for (const Part& part : before) write_part(part, out["before"].emplace_back());
  }
  out["data"] = hex64(data_fingerprint);
  out["samples_done"] = samples_done;
  out["bad_samples"] = bad_samples;
  if (bad_list) out["bad_list"] = *bad_list;
  if (num_samples) out["num_samples"] = *num_samples;
  if (packing == Packing::kLhotse) out["packing"] = kLhotseName;
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
  if (version < 1 || version > kVersion)
    return unsupported(str_cat("data cursor of version ", version,
                               "; this program knows versions 1 to ", kVersion));
  Cursor out;
  AERIE_RETURN_IF_ERROR(read_number(object, "epoch", out.epoch));
  AERIE_RETURN_IF_ERROR(read_hex(object, "seed", out.seed));
  AERIE_ASSIGN_OR_RETURN(out.now, parse_part(object));
  if (const auto found = object.find("before"); version > 1 && found != object.end()) {
    if (!found->is_array() || found->size() > kMaxParts) return broken("'before' is no list");
    for (const auto& item : *found) {
      if (!item.is_object()) return broken("'before' is no list of objects");
      AERIE_ASSIGN_OR_RETURN(Part part, parse_part(item));
      out.before.push_back(std::move(part));
    }
  }
  AERIE_RETURN_IF_ERROR(read_hex(object, "data", out.data_fingerprint));
  AERIE_RETURN_IF_ERROR(read_number(object, "samples_done", out.samples_done));
  AERIE_RETURN_IF_ERROR(read_number(object, "bad_samples", out.bad_samples));
  if (const auto found = object.find("bad_list"); found != object.end()) {
    if (!found->is_array() || found->size() > kMaxBadListed) return broken("'bad_list' is no list");
    out.bad_list.emplace();
    for (const auto& item : *found) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > 0xFFFFFFFFull)
        return broken("'bad_list' is no list of numbers");
      out.bad_list->push_back(item.get<uint32_t>());
    }
  }
  if (object.contains("num_samples"))
    AERIE_RETURN_IF_ERROR(read_number(object, "num_samples", out.num_samples.emplace()));
  out.packing = Packing::kWithinBudget;
  if (const auto found = object.find("packing"); found != object.end()) {
    if (!found->is_string()) return broken("'packing' is no name");
    if (found->get_ref<const std::string&>() != kLhotseName)
      return unsupported("data cursor: a newer version's 'packing'");
    out.packing = Packing::kLhotse;
  }
  return out;
}

}  // namespace aerie::data
