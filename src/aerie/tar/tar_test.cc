#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>

#include "aerie/base/philox.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/tar/brace_expand.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_archive.h"
#include "aerie/tar/tar_stream.h"
#include "aerie/tar/tar_writer.h"

namespace aerie::tar {
namespace {

const std::string kDir = test_data("/tar/");
using Bytes = std::vector<uint8_t>;

nlohmann::json load_json(const std::string& name) {
  std::ifstream in(kDir + name);
  return nlohmann::json::parse(in);
}

Bytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<int64_t>(bytes.size()));
}

using Members = std::vector<std::pair<std::string, Bytes>>;

Bytes make_tar(const Members& members) {
  Bytes out;
  TarWriter writer([&](std::span<const uint8_t> data) {
    out.insert(out.end(), data.begin(), data.end());
    return ok_status();
  });
  for (const auto& [name, data] : members) EXPECT_TRUE(writer.add(name, data).ok());
  EXPECT_TRUE(writer.finish().ok());
  return out;
}

Bytes pattern(size_t n, uint64_t seed) {
  RandomStream random(seed, Purpose::kTest, 0, 0);
  Bytes out(n);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.next_u32() & 0x3F);
  return out;
}

Result<Members> read_all(const Bytes& bytes, const TarOptions& options = {}) {
  AERIE_ASSIGN_OR_RETURN(const auto stream, TarStream::open_memory(bytes, "test.tar", options));
  Members members;
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const std::optional<TarMember> member, stream->next());
    if (!member) return members;
    Bytes data;
    AERIE_RETURN_IF_ERROR(stream->read(&data));
    members.emplace_back(member->name, data);
  }
}

// Changes a header field and repairs the checksum.
void patch_header(Bytes& tar, size_t block, size_t at, std::string_view value) {
  uint8_t* header = tar.data() + block * 512;
  std::memcpy(header + at, value.data(), value.size());
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (int i = 0; i < 512; ++i) sum += header[i];
  std::snprintf(reinterpret_cast<char*>(header + 148), 7, "%06o", sum);
}

TEST(TarStreamTest, ReadsWhatPythonWrote) {
  const nlohmann::json want = load_json("members.json");
  for (const char* file : {"gnu.tar", "pax.tar", "ustar.tar", "pax.tar.gz", "two_members.tar.gz",
                           "pax.tar.bz2", "pax.tar.xz"}) {
    SCOPED_TRACE(file);
    const Result<Members> members = read_all(read_bytes(kDir + file));
    ASSERT_TRUE(members.ok()) << members.status().to_string();
    std::map<std::string, Bytes> found(members->begin(), members->end());
    size_t matched = 0;
    for (const auto& row : want) {
      const auto it = found.find(row[0].get<std::string>());
      if (it == found.end()) continue;
      ++matched;
      ASSERT_EQ(it->second.size(), row[1].get<size_t>());
      for (const uint8_t byte : it->second) ASSERT_EQ(byte, row[2].get<std::string>()[0]);
    }
    EXPECT_EQ(matched, members->size());
    EXPECT_EQ(matched, std::string(file) == "ustar.tar" ? 4u : 6u);
  }
}

TEST(TarStreamTest, SkipsWhatIsNotRead) {
  const Bytes tar = make_tar({{"a.wav", pattern(100000, 1)}, {"b.wav", pattern(10, 2)}});
  const auto stream = TarStream::open_memory(tar, "t");
  ASSERT_TRUE(stream.ok());
  EXPECT_EQ((*(*stream)->next())->name, "a.wav");
  uint8_t few[7];
  EXPECT_EQ(*(*stream)->read_some(few, 7), 7u);
  const auto second = (*stream)->next();
  EXPECT_EQ((*second)->name, "b.wav");
  EXPECT_EQ((*second)->offset, 512u + 100352u + 512u);
  Bytes data;
  EXPECT_TRUE((*stream)->read(&data).ok());
  EXPECT_EQ(data, pattern(10, 2));
  EXPECT_FALSE((*stream)->next()->has_value());
}

TEST(TarStreamTest, RefusesHostileMembers) {
  const auto refused = [](const Bytes& tar, const char* why) {
    const Result<Members> members = read_all(tar);
    EXPECT_FALSE(members.ok()) << why;
    if (!members.ok()) {
      EXPECT_NE(members.status().to_string().find(why), std::string::npos)
          << members.status().to_string();
      EXPECT_EQ(members.status().code(), StatusCode::kDataError);
    }
  };
  const Bytes good = make_tar({{"a.wav", pattern(1000, 1)}, {"b.wav", pattern(1000, 2)}});
  ASSERT_TRUE(read_all(good).ok());
  const auto typed = [&](char type) {
    Bytes tar = good;
    patch_header(tar, 0, 156, std::string(1, type));
    return tar;
  };
  refused(typed('1'), "hard link");
  refused(typed('2'), "symbolic link");
  refused(typed('3'), "device");
  refused(typed('4'), "device");
  refused(typed('6'), "FIFO");
  refused(typed('S'), "sparse");
  refused(typed('M'), "volume");
  refused(typed('Z'), "type 90");
  refused(typed('5'), "directory");
  const auto named = [&](std::string_view name) {
    Bytes tar = good;
    patch_header(tar, 0, 0, std::string(100, '\0'));
    patch_header(tar, 0, 0, name);
    return tar;
  };
  refused(named("/etc/passwd"), "absolute");
  refused(named("../a.wav"), "outside");
  refused(named("x/../../a.wav"), "outside");
  refused(named("x/.."), "outside");
  refused(named(""), "no name");
  refused(named("a\x1b[2J.wav"), "control");
  refused(named("b.wav"), "twice");
  refused(named("./b.wav"), "twice");
  EXPECT_TRUE(read_all(named("..a.wav")).ok());
  Bytes huge = good;
  patch_header(huge, 0, 124, "77777777777\0");
  refused(huge, "claims");
  Bytes large = good;
  patch_header(large, 0, 124, "00000100000\0");
  refused(large, "claims");
  Bytes shifted = good;  // a size that is wrong but fits lands inside data
  patch_header(shifted, 0, 124, "00000000100\0");
  refused(shifted, "checksum");
  Bytes negative = good;
  patch_header(negative, 0, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
  refused(negative, "size");
  Bytes flipped = good;
  flipped[3] ^= 1;
  refused(flipped, "checksum");
  Bytes joined = good;
  joined.insert(joined.end(), good.begin(), good.end());
  refused(joined, "behind the end");
  refused({}, "ends early");
  refused(Bytes(5, 'x'), "ends early");
  refused(Bytes(10240, 'x'), "checksum");
}

TEST(TarStreamTest, EveryCutIsNoticed) {
  const Bytes whole = make_tar({{"a.wav", pattern(1000, 1)}, {"b.wav", pattern(600, 2)}});
  const size_t end_of_members = 512 + 1024 + 512 + 1024;
  for (size_t size = 0; size < end_of_members + 512; size += 1) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<int64_t>(size));
    ASSERT_FALSE(read_all(cut).ok()) << size;
  }
  TarOptions lenient;
  lenient.require_end_marker = false;
  const Bytes at_member(whole.begin(), whole.begin() + static_cast<int64_t>(end_of_members));
  EXPECT_TRUE(read_all(at_member, lenient).ok());
}

TEST(TarStreamTest, EveryCutOfACompressedArchiveIsNoticed) {
  for (const char* file : {"pax.tar.gz", "pax.tar.bz2", "pax.tar.xz"}) {
    const Bytes whole = read_bytes(kDir + file);
    for (size_t size = 0; size < whole.size(); ++size) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<int64_t>(size));
      ASSERT_FALSE(read_all(cut).ok()) << file << " " << size;
    }
  }
}

TEST(TarStreamTest, RefusesBombs) {
  TarOptions options;
  options.max_expansion = 1;
  // 16 MiB are always allowed.
  EXPECT_TRUE(read_all(read_bytes(kDir + "pax.tar.xz"), options).ok());
  options.max_member_bytes = 600;
  const Result<Members> members = read_all(read_bytes(kDir + "pax.tar"), options);
  ASSERT_FALSE(members.ok());
  EXPECT_NE(members.status().to_string().find("limit"), std::string::npos);
}

TEST(TarWriterTest, WritesTheSameBytesAndReadsThemBack) {
  const std::string long_name = std::string(150, 'n') + "/" + std::string(120, 'm') + ".flac";
  const Members members = {{"a.wav", pattern(1234, 1)},
                           {long_name, pattern(512, 2)},
                           {"\xc3\xbc.wav", pattern(1, 3)},
                           {"empty", {}}};
  const Bytes tar = make_tar(members);
  EXPECT_EQ(tar, make_tar(members));
  EXPECT_EQ(tar.size() % 10240, 0u);
  const Result<Members> back = read_all(tar);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, members);
}

TEST(TarWriterTest, RefusesBadNamesAndSizes) {
  TarWriter writer([](std::span<const uint8_t>) { return ok_status(); });
  EXPECT_FALSE(writer.add("../x", {}).ok());
  EXPECT_FALSE(writer.add("/x", {}).ok());
  EXPECT_FALSE(writer.add("x/", {}).ok());
  EXPECT_TRUE(writer.add("x", {}).ok());
  EXPECT_FALSE(writer.add("x", {}).ok());
  ASSERT_TRUE(writer.begin("y", 4).ok());
  EXPECT_FALSE(writer.write(Bytes(5)).ok());
  EXPECT_FALSE(writer.end().ok());
  TarWriter full([](std::span<const uint8_t>) { return io_error("disk full"); });
  EXPECT_EQ(full.add("x", {}).code(), StatusCode::kIoError);
}

TEST(TarIndexTest, ReadsAnyMemberInAnyOrder) {
  TempDir dir;
  Members members;
  for (int i = 0; i < 40; ++i)
    members.emplace_back(str_cat("m", i, ".wav"),
                         pattern(static_cast<size_t>(i) * 911, static_cast<uint64_t>(i)));
  write_bytes(dir.file("t.tar"), make_tar(members));
  const auto archive = TarArchive::open(dir.file("t.tar"));
  ASSERT_TRUE(archive.ok()) << archive.status().to_string();
  ASSERT_EQ((*archive)->index().size(), 40u);
  Bytes data;
  for (size_t k = 0; k < 40; ++k) {
    const size_t i = (k * 17) % 40;
    ASSERT_TRUE((*archive)->read(i, &data).ok());
    EXPECT_EQ((*archive)->index().name(i), members[i].first);
    EXPECT_EQ(data, members[i].second);
  }
  uint8_t part[100];
  ASSERT_TRUE((*archive)->read_range(5, 1000, 100, part).ok());
  EXPECT_EQ(std::memcmp(part, members[5].second.data() + 1000, 100), 0);
}

TEST(TarIndexTest, CacheIsUsedUntilTheArchiveChanges) {
  TempDir dir;
  const std::string path = dir.file("t.tar");
  write_bytes(path, make_tar({{"a.wav", pattern(100, 1)}}));
  bool cached = true;
  ASSERT_TRUE(TarIndex::open(path, dir.file("cache"), {}, &cached).ok());
  EXPECT_FALSE(cached);
  const Result<TarIndex> again = TarIndex::open(path, dir.file("cache"), {}, &cached);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(cached);
  EXPECT_EQ(again->name(0), "a.wav");
  write_bytes(path, make_tar({{"b.wav", pattern(100, 1)}}));
  const Result<TarIndex> changed = TarIndex::open(path, dir.file("cache"), {}, &cached);
  ASSERT_TRUE(changed.ok());
  EXPECT_FALSE(cached);
  EXPECT_EQ(changed->name(0), "b.wav");
  // A damaged cache file is built again, not believed.
  const std::string file = TarIndex::cache_path(path, dir.file("cache"));
  Bytes bytes = read_bytes(file);
  bytes[bytes.size() / 2] ^= 1;
  write_bytes(file, bytes);
  ASSERT_TRUE(TarIndex::open(path, dir.file("cache"), {}, &cached).ok());
  EXPECT_FALSE(cached);
}

TEST(TarIndexTest, DamagedIndexFilesAreRefused) {
  TempDir dir;
  write_bytes(dir.file("t.tar"), make_tar({{"a.wav", pattern(100, 1)}, {"b.wav", {}}}));
  const Result<TarIndex> index = TarIndex::build(dir.file("t.tar"));
  ASSERT_TRUE(index.ok());
  const std::string bytes = index->serialize();
  ASSERT_TRUE(TarIndex::deserialize(bytes).ok());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(TarIndex::deserialize(std::string_view(bytes).substr(0, i)).ok());
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x40);
    EXPECT_FALSE(TarIndex::deserialize(flipped).ok());
  }
}

TEST(TarIndexTest, DuplicatesAreRefused) {
  TempDir dir;
  Bytes tar = make_tar({{"a.wav", pattern(100, 1)}, {"b.wav", pattern(100, 2)}});
  patch_header(tar, 2, 0, "a.wav");
  write_bytes(dir.file("t.tar"), tar);
  const Result<TarIndex> index = TarIndex::build(dir.file("t.tar"));
  ASSERT_FALSE(index.ok());
  EXPECT_NE(index.status().to_string().find("t.tar"), std::string::npos);
  TarOptions lenient;
  lenient.refuse_duplicates = false;
  EXPECT_TRUE(TarIndex::build(dir.file("t.tar"), lenient).ok());
}

TEST(TarArchiveTest, CompressedMembersInAnyOrderFromManyThreads) {
  for (const char* file : {"pax.tar.gz", "two_members.tar.gz", "pax.tar.bz2", "pax.tar.xz"}) {
    SCOPED_TRACE(file);
    TempDir dir;
    const auto archive = TarArchive::open(kDir + file, dir.file("cache"));
    ASSERT_TRUE(archive.ok()) << archive.status().to_string();
    const Members want = *read_all(read_bytes(kDir + file));
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        Bytes data;
        for (int k = 0; k < 30; ++k) {
          const size_t i = static_cast<size_t>(k * 5 + t) % want.size();
          if (!(*archive)->read(i, &data).ok() || data != want[i].second) ++wrong;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

Bytes gzip(const Bytes& in) {
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  Bytes out(deflateBound(&z, static_cast<uLong>(in.size())));
  z.next_in = const_cast<Bytef*>(in.data());
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = out.data();
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

TEST(TarArchiveTest, GzipStartsAtAccessPoints) {
  TempDir dir;
  Members members;
  for (int i = 0; i < 20; ++i)
    members.emplace_back(str_cat("m", i, ".wav"), pattern(700'000, static_cast<uint64_t>(i)));
  // Two gzip members, so that one starts behind an access point of the first.
  const Bytes tar = make_tar(members);
  const auto middle = tar.begin() + 9'000'000;
  Bytes packed = gzip(Bytes(tar.begin(), middle));
  const Bytes rest = gzip(Bytes(middle, tar.end()));
  packed.insert(packed.end(), rest.begin(), rest.end());
  write_bytes(dir.file("t.tar.gz"), packed);
  bool cached = false;
  const Result<TarIndex> built =
      TarIndex::open(dir.file("t.tar.gz"), dir.file("cache"), {}, &cached);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_GE(built->gzip_points().size(), 3u);
  EXPECT_EQ(built->archive_bytes(), tar.size());
  const auto archive = TarArchive::open(dir.file("t.tar.gz"), dir.file("cache"));
  ASSERT_TRUE(archive.ok());
  Bytes data;
  for (const size_t i : {19u, 0u, 7u, 8u, 18u, 13u, 12u, 1u, 2u, 19u}) {
    ASSERT_TRUE((*archive)->read(i, &data).ok()) << i;
    EXPECT_EQ(data, members[i].second) << i;
  }
}

TEST(SampleKeyTest, SplitsAsWebdatasetDoes) {
  for (const auto& row : load_json("keys.json")) {
    const std::string name = row[0].get<std::string>();
    SCOPED_TRACE(name);
    const std::optional<MemberKey> key = split_member_name(name);
    ASSERT_EQ(key.has_value(), !row[1].is_null());
    if (!key) continue;
    EXPECT_EQ(key->key, row[1].get<std::string>());
    EXPECT_EQ(key->extension, to_lower(row[2].get<std::string>()));
  }
  EXPECT_FALSE(split_member_name("__meta__").has_value());
  EXPECT_FALSE(split_member_name("__meta__/a.wav").has_value());
  EXPECT_FALSE(split_member_name("d/.hidden.wav").has_value());
  EXPECT_TRUE(split_member_name("d/__x__.wav").has_value());
}

Result<std::vector<TarSample>> group(const std::vector<std::string>& names, TarIndex* index) {
  TempDir dir;
  Members members;
  for (const std::string& name : names) members.emplace_back(name, Bytes(1));
  write_bytes(dir.file("t.tar"), make_tar(members));
  *index = *TarIndex::build(dir.file("t.tar"));
  return group_samples(*index);
}

TEST(SampleKeyTest, GroupsConsecutiveMembers) {
  TarIndex index;
  const auto samples =
      group({"d/a.json", "d/a.flac", "d/a.wav", "__info__", "b.WAV", "b.txt", "readme"}, &index);
  ASSERT_TRUE(samples.ok()) << samples.status().to_string();
  ASSERT_EQ(samples->size(), 2u);
  EXPECT_EQ((*samples)[0].key, "d/a");
  EXPECT_EQ((*samples)[0].id, "a");
  EXPECT_EQ(index.name((*samples)[0].audio_member), "d/a.wav");  // wav before flac
  EXPECT_EQ((*samples)[0].num_members, 3u);
  EXPECT_EQ(index.name((*samples)[1].audio_member), "b.WAV");
}

TEST(SampleKeyTest, BadGroupsAreErrors) {
  TarIndex index;
  EXPECT_FALSE(group({"a.wav", "a.WAV"}, &index).ok());            // extension twice
  EXPECT_FALSE(group({"a.txt", "b.wav"}, &index).ok());            // no audio
  EXPECT_FALSE(group({"a.wav", "b.wav", "a.json"}, &index).ok());  // second a has no audio
  EXPECT_FALSE(group({"a.b.wav"}, &index).ok());                   // extension is b.wav
  EXPECT_TRUE(group({}, &index)->empty());
}

TEST(SampleKeyTest, JoinsManifestNames) {
  EXPECT_EQ(manifest_id("/x/y/utt.1.wav"), "utt.1");
  EXPECT_EQ(manifest_id("utt"), "utt");
  EXPECT_EQ(manifest_id("a.d/utt"), "utt");
  EXPECT_EQ(manifest_id(".wav"), ".wav");
  EXPECT_EQ(strip_sub("utt-sub1.wav"), "utt.wav");
  EXPECT_EQ(strip_sub("utt-sub12"), "utt");
  EXPECT_EQ(strip_sub("utt-sub.wav"), "utt-sub.wav");
  EXPECT_EQ(strip_sub("utt-sub1x.wav"), "utt-sub1x.wav");
  EXPECT_EQ(strip_sub("d/-sub1.wav"), "d/-sub1.wav");
  EXPECT_EQ(strip_sub("utt-sub1-sub2.wav"), "utt-sub1.wav");
  EXPECT_TRUE(has_sub("a-sub3.flac"));
  EXPECT_FALSE(has_sub("a.flac"));
}

TEST(BraceExpandTest, EqualsThePythonPackage) {
  for (const auto& row : load_json("braces.json")) {
    const std::string pattern_text = row[0].get<std::string>();
    SCOPED_TRACE(pattern_text + (row[1].get<bool>() ? " escaped" : ""));
    const Result<std::vector<std::string>> got = brace_expand(pattern_text, row[1].get<bool>());
    ASSERT_EQ(got.ok(), !row[2].is_null());
    if (!got.ok()) continue;
    EXPECT_EQ(*got, row[2].get<std::vector<std::string>>());
  }
}

TEST(BraceExpandTest, ExpandsShardPatterns) {
  for (const auto& row : load_json("shards.json")) {
    const Result<std::vector<std::string>> got = expand_shard_pattern(row[0].get<std::string>());
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(*got, row[1].get<std::vector<std::string>>());
  }
}

TEST(BraceExpandTest, RefusesWhatWouldExhaustMemory) {
  EXPECT_FALSE(brace_expand("{0..99999999}").ok());
  EXPECT_FALSE(brace_expand("{0..999}{0..999}{0..999}").ok());
  EXPECT_FALSE(brace_expand(std::string(200, '{') + "a,b" + std::string(200, '}')).ok());
}

}  // namespace
}  // namespace aerie::tar
