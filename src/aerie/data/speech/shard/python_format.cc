#include "aerie/data/speech/shard/python_format.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

namespace aerie::data {
namespace {

constexpr int kMaxDepth = 200;

using Json = nlohmann::ordered_json;

Status write_json(const Json& value, int depth, std::string& out) {
  if (depth > kMaxDepth) return data_error("JSON nested too deeply");
  switch (value.type()) {
    case Json::value_t::object: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.items()) {
        if (!std::exchange(first, false)) out += ", ";
        out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace);
        out += ": ";
        AERIE_RETURN_IF_ERROR(write_json(item, depth + 1, out));
      }
      out += '}';
      return ok_status();
    }
    case Json::value_t::array: {
      out += '[';
      bool first = true;
      for (const Json& item : value) {
        if (!std::exchange(first, false)) out += ", ";
        AERIE_RETURN_IF_ERROR(write_json(item, depth + 1, out));
      }
      out += ']';
      return ok_status();
    }
    case Json::value_t::number_float:
      out += python_repr(value.get<double>());
      return ok_status();
    default:
      out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
      return ok_status();
  }
}

}  // namespace

std::string python_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // Shortest digits that read back equal, then Python's choice of notation: exponents below -4 and
  // from 16 on are written out.
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value, std::chars_format::scientific);
  std::string_view scientific(text, static_cast<size_t>(end.ptr - text));
  std::string sign;
  if (scientific.front() == '-') {
    sign = "-";
    scientific.remove_prefix(1);
  }
  const size_t e = scientific.find('e');
  std::string digits(1, scientific[0]);
  if (e > 1) digits += scientific.substr(2, e - 2);
  int exponent = 0;
  std::string_view power = scientific.substr(e + 1);
  if (power.front() == '+') power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const int size = exponent < 0 ? -exponent : exponent;
    return out + (exponent < 0 ? "e-" : "e+") + (size < 10 ? "0" : "") + std::to_string(size);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string yaml_float(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::string text = python_repr(value);
  const size_t e = text.find('e');
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");
  return text;
}

Result<std::string> python_json(const nlohmann::ordered_json& value) {
  std::string out;
  AERIE_RETURN_IF_ERROR(write_json(value, 0, out));
  return out;
}

PythonRandom::PythonRandom(uint64_t seed) {
  // init_by_array of the reference implementation, with the seed's 32-bit words as the key.
  state_[0] = 19650218u;
  for (uint32_t i = 1; i < kSize; ++i)
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  std::vector<uint32_t> key{static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  const uint32_t length = static_cast<uint32_t>(key.size());
  uint32_t i = 1;
  uint32_t j = 0;
  for (uint32_t k = kSize; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + key[j] + j;
    ++i;
    ++j;
    if (i >= kSize) {
      state_[0] = state_[kSize - 1];
      i = 1;
    }
    if (j >= length) j = 0;
  }
  for (uint32_t k = kSize - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) - i;
    ++i;
    if (i >= kSize) {
      state_[0] = state_[kSize - 1];
      i = 1;
    }
  }
  state_[0] = 0x80000000u;
}

uint32_t PythonRandom::next() {
  if (at_ >= kSize) {
    for (int k = 0; k < kSize; ++k) {
      const uint32_t y = (state_[k] & 0x80000000u) | (state_[(k + 1) % kSize] & 0x7fffffffu);
      state_[k] = state_[(k + 397) % kSize] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

uint64_t PythonRandom::below(uint64_t n) {
  // getrandbits(k) until it is below n; words of 32 bits, least significant first.
  const int bits = static_cast<int>(std::bit_width(n));
  while (true) {
    uint64_t value = 0;
    for (int at = 0; at < bits; at += 32) {
      const int take = std::min(32, bits - at);
      value |= static_cast<uint64_t>(next() >> (32 - take)) << at;
    }
    if (value < n) return value;
  }
}

std::vector<uint64_t> PythonRandom::shuffled(uint64_t n) {
  std::vector<uint64_t> order(n);
  std::iota(order.begin(), order.end(), uint64_t{0});
  for (uint64_t i = n; i-- > 1;) std::swap(order[i], order[below(i + 1)]);
  return order;
}

}  // namespace aerie::data
