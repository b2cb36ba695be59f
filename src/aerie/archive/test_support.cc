#include "aerie/archive/test_support.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <zlib.h>

#include "aerie/archive/zip_writer.h"

namespace aerie::archive::testing {

std::string le(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i)
    out.push_back(i < 8 ? static_cast<char>(value >> 8 * i & 0xff) : '\0');
  return out;
}

Pickle& Pickle::persistent(std::string_view key, int64_t numel, std::string_view storage) {
  op('(').str("storage").global("torch", storage).str(key).str("cpu").num(numel);
  return op('t').op('Q');
}

Pickle& Pickle::tensor(std::string_view key, int64_t storage_numel, int64_t offset,
                       const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                       std::string_view storage) {
  global("torch._utils", "_rebuild_tensor_v2").op('(');
  persistent(key, storage_numel, storage).num(offset).tuple(shape).tuple(strides);
  return op('\x89').global("collections", "OrderedDict").raw(")R").op('t').op('R');
}

std::string RawZip::make() const {
  std::string out, directory;
  for (const RawEntry& entry : entries) {
    const auto or_else = [](int64_t value, uint64_t truth) {
      return value < 0 ? truth : static_cast<uint64_t>(value);
    };
    const uint64_t crc =
        or_else(entry.crc,
                crc32_z(0, reinterpret_cast<const Bytef*>(entry.data.data()), entry.data.size()));
    const uint64_t stored = or_else(entry.stored_size, entry.data.size());
    const uint64_t size = or_else(entry.size, entry.data.size());
    const uint64_t offset = or_else(entry.header_offset, out.size());
    const std::string& local = entry.local_name.empty() ? entry.name : entry.local_name;
    const uint64_t local_size = or_else(entry.local_size, stored);
    const auto method = static_cast<uint64_t>(entry.method);
    const auto flags = static_cast<uint64_t>(entry.flags);
    out += le(0x04034b50, 4) + le(20, 2) + le(flags, 2) + le(method, 2) + le(0, 4) + le(crc, 4) +
           le(local_size, 4) + le(size, 4) + le(local.size(), 2) + le(0, 2) + local + entry.data;
    directory += le(0x02014b50, 4) + le(20, 2) + le(20, 2) + le(flags, 2) + le(method, 2) +
                 le(0, 4) + le(crc, 4) + le(stored, 4) + le(size, 4) + le(entry.name.size(), 2) +
                 le(0, 2) + le(0, 2) + le(0, 2) + le(0, 2) + le(entry.attributes, 4) +
                 le(offset, 4) + entry.name;
  }
  const uint64_t directory_at = out.size();
  const auto field = [](int64_t value, uint64_t truth, int bytes) {
    return le(value < 0 ? truth : static_cast<uint64_t>(value), bytes);
  };
  out += directory;
  out += le(0x06054b50, 4) + le(0, 4) + field(count, entries.size(), 2) +
         field(count, entries.size(), 2) + field(directory_size, directory.size(), 4) +
         field(directory_offset, directory_at, 4) + le(comment.size(), 2) + comment;
  return out;
}

std::string torch_zip(const std::string& pickle,
                      const std::map<std::string, std::string>& storages) {
  std::string out;
  ZipWriter zip([&](std::string_view bytes) {
    out += bytes;
    return ok_status();
  });
  Status status = zip.add("archive/data.pkl", pickle);
  if (status.ok()) status = zip.add("archive/byteorder", "little");
  for (const auto& [key, bytes] : storages)
    if (status.ok()) status = zip.add("archive/data/" + key, bytes);
  if (status.ok()) status = zip.add("archive/version", "3\n");
  if (status.ok()) status = zip.finish();
  AERIE_CHECK(status.ok(), status.to_string());
  return out;
}

std::string floats(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<float>(i);
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return out;
}

std::string small_torch_file() {
  Pickle pickle;
  pickle.global("collections", "OrderedDict").raw(")R(").str("w");
  pickle.tensor("0", 6, 0, {2, 3}, {3, 1}).op('u');
  return torch_zip(pickle.stop(), {{"0", floats(6)}});
}

std::string tar_member(std::string_view name, std::string_view data, char type,
                       std::string_view link, int64_t claimed_size) {
  char block[512] = {};
  name.copy(block, 100);
  std::memcpy(block + 100, "0000644", 7);
  std::memcpy(block + 108, "0000000", 7);
  std::memcpy(block + 116, "0000000", 7);
  const auto size = claimed_size < 0 ? data.size() : static_cast<unsigned long long>(claimed_size);
  std::snprintf(block + 124, 12, "%011llo", static_cast<unsigned long long>(size));
  std::memcpy(block + 136, "00000000000", 11);
  block[156] = type;
  link.copy(block + 157, 100);
  std::memcpy(block + 257, "ustar\00000", 8);
  std::memset(block + 148, ' ', 8);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  std::snprintf(block + 148, 8, "%06o", sum);
  std::string out(block, sizeof block);
  out += data;
  out.append((512 - data.size() % 512) % 512, '\0');
  return out;
}

std::string tar_end() {
  return std::string(1024, '\0');
}

std::string small_nemo(const std::string& weights) {
  return tar_member("./", "", '5') + tar_member("./model_config.yaml", "sample_rate: 16000\n") +
         tar_member("./model_weights.ckpt", weights) + tar_end();
}

namespace {
std::string compress(std::string_view head, uint64_t zeros, int window_bits) {
  z_stream stream{};
  AERIE_CHECK(deflateInit2(&stream, zeros > 0 ? 1 : 9, Z_DEFLATED, window_bits, 8,
                           Z_DEFAULT_STRATEGY) == Z_OK,
              "deflateInit2");
  const std::string block(65536, '\0');
  std::string out, piece(65536, '\0');
  const auto feed = [&](std::string_view bytes, int flush) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream.avail_out = static_cast<uInt>(piece.size());
      AERIE_CHECK(deflate(&stream, flush) != Z_STREAM_ERROR, "deflate");
      out.append(piece, 0, piece.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  };
  feed(head, Z_NO_FLUSH);
  for (uint64_t left = zeros; left > 0;) {
    const auto take = static_cast<size_t>(std::min<uint64_t>(left, block.size()));
    feed(std::string_view(block).substr(0, take), Z_NO_FLUSH);
    left -= take;
  }
  feed({}, Z_FINISH);
  deflateEnd(&stream);
  return out;
}
}  // namespace

std::string gzip(std::string_view bytes) {
  return compress(bytes, 0, MAX_WBITS + 16);
}
std::string deflate_raw(std::string_view bytes) {
  return compress(bytes, 0, -MAX_WBITS);
}
std::string gzip_bomb(std::string_view head, uint64_t zeros) {
  return compress(head, zeros, MAX_WBITS + 16);
}
std::string deflate_bomb(uint64_t zeros) {
  return compress({}, zeros, -MAX_WBITS);
}

std::string legacy_torch(const std::string& pickle,
                         const std::vector<std::pair<std::string, std::string>>& storages,
                         size_t element_bytes) {
  std::string out("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  out += Pickle().num(1001).stop();
  out += Pickle().op('}').str("little_endian").raw("\x88").op('s').stop();
  out += pickle;
  Pickle keys;
  keys.op(']');
  for (const auto& [key, bytes] : storages) keys.str(key).op('a');
  out += keys.stop();
  for (const auto& [key, bytes] : storages) out += le(bytes.size() / element_bytes, 8) + bytes;
  return out;
}

}  // namespace aerie::archive::testing
