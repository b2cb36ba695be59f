// The functions of `${name:arguments}`: OmegaConf's own and those NeMo registers.
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>

#include "aerie/base/strings.h"
#include "aerie/config/resolver_engine.h"
#include "aerie/config/yaml.h"

namespace aerie::config {

namespace {

using Arguments = std::vector<Value>;

struct Call {
  ResolverEngine& engine;
  const PlacePtr& place;
  const std::string& name;
  const Arguments& arguments;
};

Result<std::string> string_argument(const Call& call, size_t index) {
  const Value& argument = call.arguments[index];
  if (argument.is_string()) return argument.as_string();
  return invalid_argument(str_cat(call.name, " takes a string, not the ", argument.kind_name(), " ",
                                  argument.brief(40)));
}

// Reads what OmegaConf would turn back into interpolations and missing values.
Value reclassify(const Value& value) {
  if (value.is_string()) return Value::from_text(value.as_string());
  if (value.is_list()) {
    List list;
    for (const Value& item : value.as_list()) list.push_back(reclassify(item));
    return list;
  }
  if (value.is_map()) {
    Map map;
    for (const MapEntry& entry : value.as_map()) {
      map.set(MapEntry{entry.key, reclassify(entry.value), entry.key_kind, entry.key_origin});
    }
    return map;
  }
  return value;
}

Result<PlacePtr> env(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const std::string name, string_argument(call, 0));
  call.engine.note_env_read();
  std::optional<std::string> found;
  if (call.engine.options().env) {
    found = call.engine.options().env(name);
  } else if (name.find('\0') == std::string::npos) {
    if (const char* text = std::getenv(name.c_str())) found = text;
  }
  if (found) {
    AERIE_RETURN_IF_ERROR(call.engine.charge(0, found->size()));
    return call.engine.make(call.place, Value(std::move(*found)));
  }
  if (call.arguments.size() < 2) {
    if (call.engine.options().unset_env_is_missing)
      return call.engine.make(call.place, Value::missing());
    return invalid_argument(str_cat("Environment variable '", name, "' not found"))
        .with_hint(str_cat("set it, or give a default: ${oc.env:", name, ",value}"));
  }
  const Value& fallback = call.arguments[1];
  if (fallback.is_null()) return call.engine.make(call.place, Value());
  return call.engine.make(call.place, Value(python_str(fallback)));
}

Result<PlacePtr> select(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const std::string key, string_argument(call, 0));
  AERIE_ASSIGN_OR_RETURN(PlacePtr target, call.engine.select(call.place, key, false));
  if (target) {
    AERIE_ASSIGN_OR_RETURN(target, call.engine.evaluate(target));
  }
  if (target && !target->node->is_missing()) return target;
  return call.engine.make(call.place, call.arguments.size() > 1 ? call.arguments[1] : Value());
}

Result<PlacePtr> decode(const Call& call) {
  if (call.arguments[0].is_null() || call.arguments[0].is_missing())
    return call.engine.make(call.place, call.arguments[0]);
  AERIE_ASSIGN_OR_RETURN(const std::string text, string_argument(call, 0));
  AERIE_ASSIGN_OR_RETURN(const Element element, parse_element(text));
  AERIE_ASSIGN_OR_RETURN(Value value, call.engine.element(call.place, element));
  return call.engine.make(call.place, std::move(value));
}

Result<PlacePtr> create(const Call& call) {
  Value value = call.arguments[0];
  if (value.is_string()) {
    const std::string text = value.as_string();
    AERIE_ASSIGN_OR_RETURN(value, parse_yaml(text, "oc.create"));
    if (value.is_null()) value = Map();
    if (value.is_string()) {
      Map map;
      map.set(value.as_string(), Value());
      value = std::move(map);
    }
  }
  if (!value.is_container()) {
    return invalid_argument(str_cat("oc.create makes a map or a list, not ", value.kind_phrase()));
  }
  if (value.depth() > kMaxDepth) return invalid_argument("oc.create: nested too deep");
  return call.engine.make(call.place, reclassify(value));
}

Result<PlacePtr> map_at(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const std::string key, string_argument(call, 0));
  AERIE_ASSIGN_OR_RETURN(PlacePtr target, call.engine.select(call.place, key, true));
  AERIE_ASSIGN_OR_RETURN(target, call.engine.evaluate(target));
  if (!target->node->is_map()) {
    return invalid_argument(str_cat(call.name, " takes the key of a map; '", key, "' is ",
                                    target->node->kind_phrase()));
  }
  return target;
}

Result<PlacePtr> dict_keys(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const PlacePtr target, map_at(call));
  List keys;
  for (const MapEntry& entry : target->node->as_map()) {
    AERIE_RETURN_IF_ERROR(call.engine.charge(1, entry.key.size()));
    const char* text = entry.key.c_str();
    switch (entry.key_kind) {
      case Value::Kind::kInt:
        keys.push_back(Value(static_cast<int64_t>(std::strtoll(text, nullptr, 10))));
        break;
      case Value::Kind::kBigInt: {
        const bool negative = starts_with(entry.key, "-");
        keys.push_back(
            Value::whole_number(std::string_view(entry.key).substr(negative), 10, negative));
        break;
      }
      case Value::Kind::kFloat:
        keys.push_back(Value(std::strtod(text, nullptr)));
        break;
      case Value::Kind::kBool:
        keys.push_back(Value(entry.key == "true"));
        break;
      default:
        keys.push_back(Value(entry.key));
    }
  }
  return call.engine.make(call.place, Value(std::move(keys)));
}

Result<PlacePtr> dict_values(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const PlacePtr target, map_at(call));
  List values;
  for (const MapEntry& entry : target->node->as_map()) {
    AERIE_ASSIGN_OR_RETURN(
        Value value,
        call.engine.expand(std::make_shared<const Place>(Place{&entry.value, target, entry.key})));
    values.push_back(std::move(value));
  }
  return call.engine.make(call.place, Value(std::move(values)));
}

Result<PlacePtr> deprecated(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const std::string key, string_argument(call, 0));
  std::string message = "'$OLD_KEY' is deprecated. Change your code and config to use '$NEW_KEY'";
  if (call.arguments.size() > 1) {
    AERIE_ASSIGN_OR_RETURN(message, string_argument(call, 1));
  }
  AERIE_ASSIGN_OR_RETURN(const PlacePtr target, call.engine.select(call.place, key, true));
  const auto replace = [&](std::string_view name, const std::string& by) {
    for (size_t at = message.find(name); at != std::string::npos;
         at = message.find(name, at + by.size())) {
      message.replace(at, name.size(), by);
    }
  };
  replace("$OLD_KEY", full_key(*call.place));
  replace("$NEW_KEY", full_key(*target));
  if (call.engine.options().warn) call.engine.options().warn(message);
  return call.engine.evaluate(target);
}

bool is_numeric(const Value& value) {
  return value.is_number() || value.is_bool();
}

int64_t as_integer(const Value& value) {
  return value.is_bool() ? (value.as_bool() ? 1 : 0) : value.as_int();
}

double as_double(const Value& value) {
  return value.is_float() ? value.as_float() : static_cast<double>(as_integer(value));
}

// NeMo's multiply and sum are Python's * and +.
Result<PlacePtr> arithmetic(const Call& call) {
  const Value& x = call.arguments[0];
  const Value& y = call.arguments[1];
  const bool product = call.name == "multiply";
  const auto answer = [&](Value value) -> Result<PlacePtr> {
    return call.engine.make(call.place, std::move(value));
  };
  if (is_numeric(x) && is_numeric(y)) {
    if (x.is_float() || y.is_float()) {
      const double a = as_double(x);
      const double b = as_double(y);
      return answer(Value(product ? a * b : a + b));
    }
    int64_t out = 0;
    const bool overflow = x.is_big_int() || y.is_big_int() ||
                          (product ? __builtin_mul_overflow(as_integer(x), as_integer(y), &out)
                                   : __builtin_add_overflow(as_integer(x), as_integer(y), &out));
    if (overflow) {
      return invalid_argument(str_cat(call.name, " computes with whole numbers of 64 bits; ",
                                      x.brief(30), " and ", y.brief(30), " need more"));
    }
    return answer(Value(out));
  }
  if (!product && x.is_string() && y.is_string()) {
    AERIE_RETURN_IF_ERROR(call.engine.charge(1, x.as_string().size() + y.as_string().size()));
    return answer(Value(x.as_string() + y.as_string()));
  }
  if (!product && x.is_list() && y.is_list()) {
    AERIE_RETURN_IF_ERROR(call.engine.charge(x.as_list().size() + y.as_list().size(), 0));
    List list = x.as_list();
    list.insert(list.end(), y.as_list().begin(), y.as_list().end());
    return answer(Value(std::move(list)));
  }
  return invalid_argument(str_cat(call.name, " cannot combine ", x.kind_name(), " ", x.brief(30),
                                  " and ", y.kind_name(), " ", y.brief(30)));
}

Result<PlacePtr> gpu_name(const Call& call) {
  const auto& ask = call.engine.options().gpu_name;
  return call.engine.make(call.place, Value(ask ? ask() : std::string("cpu")));
}

// Python's datetime.now().strftime(pattern): microseconds for %f, nothing for a time zone, which
// such a time does not have; the rest is the C library's.
Result<std::string> format_now(const std::string& pattern) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto micros =
      std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() %
      1000000;
  std::tm local{};
  if (localtime_r(&seconds, &local) == nullptr) return internal_error("the clock has no date");
  std::string given;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'f') {
      const std::string digits = std::to_string(micros);
      given += std::string(6 - digits.size(), '0') + digits;
    } else if (next != 'z' && next != 'Z') {
      given += pattern[i];
      if (next != '\0') given += next;
    }
    if (next != '\0') ++i;
  }
  // A last character tells an empty answer from one that did not fit.
  given += '.';
  std::string out(given.size() * 4 + 256, '\0');
  const size_t length = std::strftime(out.data(), out.size(), given.c_str(), &local);
  if (length == 0) return invalid_argument("now: the pattern makes too long a text");
  out.resize(length - 1);
  return out;
}

// As in Hydra, a pattern that comes again gives the time of its first use in this process.
Result<PlacePtr> now(const Call& call) {
  AERIE_ASSIGN_OR_RETURN(const std::string pattern, string_argument(call, 0));
  if (pattern.size() > 1000 || pattern.find('\0') != std::string::npos)
    return invalid_argument("now takes a pattern such as %Y-%m-%d_%H-%M-%S");
  static std::mutex mutex;
  static auto& first_use = *new std::map<std::string, std::string>;
  const std::lock_guard lock(mutex);
  auto found = first_use.find(pattern);
  if (found == first_use.end()) {
    AERIE_ASSIGN_OR_RETURN(std::string text, format_now(pattern));
    found = first_use.emplace(pattern, std::move(text)).first;
  }
  return call.engine.make(call.place, Value(found->second));
}

struct Function {
  const char* name;
  size_t least;
  size_t most;
  Result<PlacePtr> (*run)(const Call&);
};

constexpr Function kFunctions[] = {
    {"oc.env", 1, 2, env},
    {"oc.select", 1, 2, select},
    {"oc.decode", 1, 1, decode},
    {"oc.create", 1, 1, create},
    {"oc.dict.keys", 1, 1, dict_keys},
    {"oc.dict.values", 1, 1, dict_values},
    {"oc.deprecated", 1, 2, deprecated},
    {"now", 1, 1, now},
    {"multiply", 2, 2, arithmetic},
    {"sum", 2, 2, arithmetic},
    {"gpu_name", 0, 0, gpu_name},
};

}  // namespace

Result<PlacePtr> call_resolver(ResolverEngine& engine, const PlacePtr& place,
                               const std::string& name, const std::vector<Value>& arguments) {
  std::vector<std::string> names;
  for (const Function& function : kFunctions) {
    names.emplace_back(function.name);
    if (name != function.name) continue;
    if (arguments.size() < function.least || arguments.size() > function.most) {
      std::string counts = std::to_string(function.least);
      if (function.most != function.least) counts += str_cat(" to ", function.most);
      return invalid_argument(
          str_cat(name, " takes ", counts, " arguments, not ", arguments.size()));
    }
    return function.run(Call{engine, place, name, arguments});
  }
  return invalid_argument(str_cat("Unsupported interpolation type ", name))
      .with_hint(str_cat("known are ", join(names, ", ")));
}

}  // namespace aerie::config
