// Checksums and hashes. xxHash64 for change detection and file integrity (fast, not secure), CRC-32
// as in gzip and zip, SHA-256 where others publish it. None of them depends on the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace aerie {

uint64_t xxhash64(std::string_view bytes, uint64_t seed = 0);

// The same value, fed piece by piece. One thread at a time.
class XxHash64 final {
 public:
  explicit XxHash64(uint64_t seed = 0);
  ~XxHash64();
  XxHash64(XxHash64&&) noexcept;
  XxHash64& operator=(XxHash64&&) noexcept;
  void update(std::string_view bytes);
  void update(const void* bytes, size_t size) {
    update(std::string_view(static_cast<const char*>(bytes), size));
  }
  uint64_t digest() const;  // of everything so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// CRC-32 (IEEE); pass the previous value to continue.
uint32_t crc32(std::string_view bytes, uint32_t previous = 0);

// One thread at a time.
class Sha256 final {
 public:
  Sha256();
  void update(std::string_view bytes);
  std::array<uint8_t, 32> digest() const;  // of everything so far

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_;
  std::array<uint8_t, 64> buffer_{};
  uint64_t num_bytes_ = 0;
};

std::string sha256_hex(std::string_view bytes);

// Lower-case hexadecimal, 16 digits.
std::string hex64(uint64_t value);
std::string hex(const uint8_t* bytes, size_t size);

}  // namespace aerie
