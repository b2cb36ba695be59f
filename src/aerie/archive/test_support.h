// Builders of archives for tests, good and bad. Everything they make is a string of bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aerie::archive::testing {

std::string le(uint64_t value, int bytes);  // little-endian

// A pickle, opcode by opcode.
class Pickle {
 public:
  Pickle() { text_ = "\x80\x02"; }
  Pickle& op(char code) { return raw(std::string(1, code)); }
  Pickle& raw(std::string_view bytes) {
    text_ += bytes;
    return *this;
  }
  Pickle& str(std::string_view text) { return op('X').raw(le(text.size(), 4)).raw(text); }
  Pickle& num(int64_t value) {  // LONG1 takes any size
    return raw("\x8a\x08").raw(le(static_cast<uint64_t>(value), 8));
  }
  Pickle& global(std::string_view module, std::string_view name) {
    return op('c').raw(module).op('\n').raw(name).op('\n');
  }
  Pickle& tuple(const std::vector<int64_t>& values) {
    op('(');
    for (const int64_t value : values) num(value);
    return op('t');
  }
  // A tensor on storage `key`, as torch writes it.
  Pickle& tensor(std::string_view key, int64_t storage_numel, int64_t offset,
                 const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                 std::string_view storage = "FloatStorage");
  Pickle& persistent(std::string_view key, int64_t numel, std::string_view storage);
  std::string stop() const { return text_ + "."; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A file of torch before 1.6: this pickle, then storages in their order, of elements of so many
// bytes.
std::string legacy_torch(const std::string& pickle,
                         const std::vector<std::pair<std::string, std::string>>& storages,
                         size_t element_bytes);

// A zip archive whose headers may lie.
struct RawEntry {
  std::string name;
  std::string data;
  std::string local_name = {};  // empty: as name
  int method = 0;
  int flags = 0;
  int64_t crc = -1;            // -1: the true one
  int64_t size = -1;           // uncompressed; -1: data.size()
  int64_t stored_size = -1;    // -1: data.size()
  int64_t local_size = -1;     // -1: as stored_size
  int64_t header_offset = -1;  // what the directory says; -1: the truth
  uint32_t attributes = 0;
};
struct RawZip {
  std::vector<RawEntry> entries;
  int64_t count = -1;  // in the end record
  int64_t directory_size = -1;
  int64_t directory_offset = -1;
  std::string comment = {};
  std::string make() const;
};

// As torch.save lays it out: data.pkl, byteorder, data/<key>, version.
std::string torch_zip(const std::string& pickle,
                      const std::map<std::string, std::string>& storages = {});
// The smallest honest weight file: {"w": float32 [2, 3]} with values 0..5.
std::string small_torch_file();
std::string floats(int count);  // 0, 1, 2, ... as bytes

// Tar members with any header; `type` '0' file, '5' directory, '1' and '2' links.
std::string tar_member(std::string_view name, std::string_view data, char type = '0',
                       std::string_view link = {}, int64_t claimed_size = -1);
std::string tar_end();
std::string small_nemo(const std::string& weights = small_torch_file());

std::string gzip(std::string_view bytes);
std::string deflate_raw(std::string_view bytes);
// `head` and then `zeros` zeros, compressed without ever being in memory: a bomb.
std::string gzip_bomb(std::string_view head, uint64_t zeros);
std::string deflate_bomb(uint64_t zeros);

}  // namespace aerie::archive::testing
