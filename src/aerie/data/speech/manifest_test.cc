#include "aerie/data/speech/manifest.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/philox.h"
#include "aerie/base/process.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/speech/manifest_line.h"
#include "aerie/data/speech/manifest_path.h"

namespace aerie::data::manifest_test {
namespace {

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream out;
  out << file.rdbuf();
  return out.str();
}

ManifestOptions quiet() {
  ManifestOptions options;
  options.quiet = true;
  return options;
}

ManifestLine parse_ok(std::string_view text) {
  ManifestLineParser parser;
  ManifestLine line;
  const Status status = parser.parse(text, line);
  EXPECT_TRUE(status.ok()) << text << ": " << status.to_string();
  return line;
}

std::string parse_error(std::string_view text) {
  ManifestLineParser parser;
  ManifestLine line;
  const Status status = parser.parse(text, line);
  EXPECT_FALSE(status.ok()) << text;
  return status.message();
}

TEST(ManifestLineTest, FilenameWinsOverFilepath) {
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a.wav","audio_filename":"b.wav"})").paths[0], "b.wav");
  EXPECT_EQ(parse_ok(R"({"audio_filename":"b.wav","audio_filepath":"a.wav"})").paths[0], "b.wav");
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a.wav"})").paths[0], "a.wav");
}

TEST(ManifestLineTest, DurationAndOffsetMayBeMissingOrNull) {
  ManifestLine line = parse_ok(R"({"audio_filepath":"a","duration":null,"offset":null})");
  EXPECT_TRUE(std::isnan(line.duration_s));
  EXPECT_EQ(line.offset_s, 0.0);
  line = parse_ok(R"({"audio_filepath":"a"})");
  EXPECT_TRUE(std::isnan(line.duration_s));
  line = parse_ok(R"({"audio_filepath":"a","duration":3,"offset":1.25})");
  EXPECT_EQ(line.duration_s, 3.0);
  EXPECT_EQ(line.offset_s, 1.25);
}

TEST(ManifestLineTest, ListsOfFilesAreChannels) {
  const ManifestLine line = parse_ok(R"({"audio_filepath":["l.wav","r.wav"],"duration":1})");
  EXPECT_TRUE(line.is_list);
  EXPECT_EQ(line.paths, (std::vector<std::string>{"l.wav", "r.wav"}));
}

TEST(ManifestLineTest, TheLastOfTwoEqualKeysCounts) {
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a","audio_filepath":"b"})").paths[0], "b");
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a","duration":1,"duration":2})").duration_s, 2.0);
}

TEST(ManifestLineTest, OtherFieldsMayBeAnything) {
  const ManifestLine line =
      parse_ok(R"({"text":{"a":[1,{"duration":7}]},"id":123456789012345678901234567890,)"
               R"("audio_filepath":"\u00e9\"x.wav","channel":1})");
  EXPECT_EQ(line.paths[0], "\xC3\xA9\"x.wav");
  EXPECT_EQ(line.channel, 1);
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a","channel":[0,1]})").channel, -1);
  EXPECT_EQ(parse_ok(R"({"audio_filepath":"a","speaker":null,"lang":"en"})").channel, -1);
}

TEST(ManifestLineTest, SaysWhatIsWrong) {
  EXPECT_NE(parse_error(R"({"audio_filepath":"a")").find("JSON"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a","x":tru})").find("JSON"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a"} trailing)").find("JSON"), std::string::npos);
  EXPECT_NE(parse_error(R"(["a"])").find("object"), std::string::npos);
  EXPECT_NE(parse_error(R"(17)").find("object"), std::string::npos);
  EXPECT_NE(parse_error(R"({"duration":1})").find("audio_filepath"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":7})").find("string"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":[]})").find("empty"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":["a",3]})").find("string"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":""})").find("empty"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a\u0000b"})").find("zero"), std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a","duration":"3"})").find("duration"),
            std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a","duration":true})").find("duration"),
            std::string::npos);
  EXPECT_NE(parse_error(R"({"audio_filepath":"a","offset":"x"})").find("offset"),
            std::string::npos);
  EXPECT_NE(parse_error("{\"audio_filepath\":\"\xFF\"}").find("UTF-8"), std::string::npos);
  parse_error(R"({"audio_filepath":"a","duration":1e999})");
  parse_error(R"({"audio_filepath":"a","duration":NaN})");
  parse_error("");
  parse_error(std::string(100000, '['));
  EXPECT_NE(parse_error(R"({"audio_filepath":"a","channel":-1})").find("channel"),
            std::string::npos);
}

TEST(ManifestPathTest, RelativePathsLeadToTheManifestsFolderFirst) {
  TempDir dir;
  const std::string manifest = dir.file("m.json");
  write(dir.file("here.wav"), "x");
  Env& env = Env::real();
  EXPECT_EQ(resolve_audio_path(env, "here.wav", manifest), dir.file("here.wav"));
  EXPECT_EQ(resolve_audio_path(env, "missing.wav", manifest), "missing.wav");
  EXPECT_EQ(resolve_audio_path(env, "/abs/here.wav", manifest), "/abs/here.wav");
  // A folder is no file.
  ASSERT_TRUE(env.create_dir(dir.file("sub")).ok());
  EXPECT_EQ(resolve_audio_path(env, "sub", manifest), "sub");
}

TEST(ManifestPathTest, HomeIsExpanded) {
  TempDir dir;
  const char* const old_home = std::getenv("HOME");
  const std::string old = old_home != nullptr ? old_home : "";
  setenv("HOME", dir.path().c_str(), 1);
  EXPECT_EQ(resolve_audio_path(Env::real(), "~/a.wav", "/x/m.json"), dir.file("a.wav"));
  write(dir.file("b.wav"), "x");
  EXPECT_EQ(resolve_audio_path(Env::real(), "b.wav", "~/m.json"), dir.file("b.wav"));
  setenv("HOME", old.c_str(), 1);
}

TEST(ManifestPathTest, LongPathsAreTakenAsWritten) {
  TempDir dir;
  const std::string manifest = dir.file("m.json");
  const std::string long_path = std::string(251, 'a') + ".wav";  // 255 characters
  EXPECT_EQ(audio_path_candidates(long_path, manifest).size(), 1u);
  EXPECT_EQ(audio_path_candidates(long_path.substr(1), manifest).size(), 2u);
  // Characters, not bytes: 200 two-byte letters are short.
  std::string letters;
  for (int i = 0; i < 200; ++i) letters += "\xC3\xA9";
  EXPECT_EQ(audio_path_candidates(letters, manifest).size(), 2u);
}

TEST(ManifestPathTest, NamesOfTarMembersAreLeftAlone) {
  EXPECT_TRUE(is_tar_member_name("a.wav", "/d/tarred_audio_manifest.json"));
  EXPECT_TRUE(is_tar_member_name("a.wav", "/d/sharded_manifests/manifest_12.json"));
  EXPECT_FALSE(is_tar_member_name("d/a.wav", "/d/tarred_audio_manifest.json"));
  EXPECT_FALSE(is_tar_member_name("a.wav", "/d/sharded_manifests/manifest_x.json"));
  EXPECT_FALSE(is_tar_member_name("a.wav", "/d/sharded_manifests/manifest_.json"));
  EXPECT_FALSE(is_tar_member_name("a.wav", "/d/manifest_12.json"));
  EXPECT_FALSE(is_tar_member_name("a.wav", "/d/m.json"));
  TempDir dir;
  write(dir.file("a.wav"), "x");
  EXPECT_EQ(resolve_audio_path(Env::real(), "a.wav", dir.file("tarred_audio_manifest.json")),
            "a.wav");
}

TEST(ManifestPathTest, CommaListsAreSplit) {
  EXPECT_EQ(split_manifest_list("a.json,b.json"), (std::vector<std::string>{"a.json", "b.json"}));
  EXPECT_EQ(split_manifest_list("a.json"), (std::vector<std::string>{"a.json"}));
}

TEST(ManifestTest, BoundsAreInclusiveAndUnknownDurationsPass) {
  TempDir dir;
  write(dir.file("m.json"),
        "{\"audio_filepath\":\"short\",\"duration\":0.999}\n"
        "{\"audio_filepath\":\"low\",\"duration\":1.0}\n"
        "\n   \n"
        "{\"audio_filepath\":\"none\"}\r\n"
        "{\"audio_filepath\":\"null\",\"duration\":null}\n"
        "{\"audio_filepath\":\"high\",\"duration\":60.0}\n"
        "{\"audio_filepath\":\"long\",\"duration\":60.001}");
  ManifestOptions options = quiet();
  options.min_duration_s = 1.0;
  options.max_duration_s = 60.0;
  const Manifest manifest = *Manifest::open({dir.file("m.json")}, options);
  ASSERT_EQ(manifest.size(), 4u);
  EXPECT_EQ(manifest.written_path(0), "low");
  EXPECT_EQ(manifest.written_path(1), "none");
  EXPECT_EQ(manifest.written_path(2), "null");
  EXPECT_EQ(manifest.written_path(3), "high");
  EXPECT_EQ(manifest.place(3), dir.file("m.json") + ":7");
  EXPECT_EQ(manifest.totals().kept, 4u);
  EXPECT_EQ(manifest.totals().filtered, 2u);
  EXPECT_EQ(manifest.totals().unknown, 2u);
  EXPECT_DOUBLE_EQ(manifest.totals().kept_s, 61.0);
  EXPECT_DOUBLE_EQ(manifest.totals().filtered_s, 61.0);
  EXPECT_DOUBLE_EQ(manifest.totals().longest_s, 60.0);
  EXPECT_DOUBLE_EQ(manifest.totals().shortest_s, 1.0);
  const Manifest all = *Manifest::open({dir.file("m.json")}, quiet());
  EXPECT_EQ(all.size(), 6u);
  EXPECT_NE(all.fingerprint(), manifest.fingerprint());
}

TEST(ManifestTest, SeveralManifestsAreOneList) {
  TempDir dir;
  write(dir.file("a.json"),
        "{\"audio_filepath\":\"a0\",\"duration\":1}\n"
        "{\"audio_filepath\":\"a1\",\"duration\":9}\n");
  write(dir.file("empty.json"), "\n");
  write(dir.file("b.json"),
        "{\"audio_filepath\":\"x/b0\",\"duration\":2,\"offset\":0.5}\n"
        "{\"audio_filepath\":[\"x/l\",\"y/r\"],\"duration\":3,\"channel\":1}\n");
  ManifestOptions options = quiet();
  options.max_duration_s = 5;
  const Manifest manifest =
      *Manifest::open({dir.file("a.json"), dir.file("empty.json"), dir.file("b.json")}, options);
  ASSERT_EQ(manifest.size(), 3u);
  EXPECT_EQ(manifest.written_path(0), "a0");
  EXPECT_EQ(manifest.written_path(1), "x/b0");
  EXPECT_EQ(manifest.base_name(1), "b0");
  EXPECT_EQ(manifest.offset_s(0), 0.0);
  EXPECT_EQ(manifest.offset_s(1), 0.5);
  EXPECT_EQ(manifest.channel(1), -1);
  EXPECT_EQ(manifest.channel(2), 1);
  EXPECT_TRUE(manifest.is_list(2));
  EXPECT_EQ(manifest.resolve_paths(2), (std::vector<std::string>{"x/l", "y/r"}));
  EXPECT_EQ(manifest.base_name(2), "l");
  EXPECT_EQ(*manifest.raw_line(1), "{\"audio_filepath\":\"x/b0\",\"duration\":2,\"offset\":0.5}");
  EXPECT_EQ(manifest.first_of_file(2), 1u);
}

TEST(ManifestTest, BadLinesAreAllNamedAndRefused) {
  TempDir dir;
  std::string text;
  for (int i = 1; i <= 60; ++i)
    text += i % 2 == 0 || i == 31 ? "{broken\n" : "{\"audio_filepath\":\"a\",\"duration\":1}\n";
  write(dir.file("m.json"), text);
  const Status status = Manifest::open({dir.file("m.json")}, quiet()).status();
  ASSERT_EQ(status.code(), StatusCode::kDataError);
  const std::string message = status.to_string();
  EXPECT_NE(message.find("31 manifest lines"), std::string::npos) << message;
  EXPECT_NE(message.find("2, 4, 6"), std::string::npos) << message;
  EXPECT_NE(message.find("30-32"), std::string::npos) << message;
  EXPECT_NE(message.find("and 60"), std::string::npos) << message;
  EXPECT_NE(message.find("skip_bad_lines"), std::string::npos) << message;
  ManifestOptions options = quiet();
  options.skip_bad_lines = true;
  const Manifest manifest = *Manifest::open({dir.file("m.json")}, options);
  EXPECT_EQ(manifest.size(), 29u);
  EXPECT_EQ(manifest.totals().bad_lines, 31u);
  // The cached index remembers them.
  EXPECT_FALSE(Manifest::open({dir.file("m.json")}, quiet()).ok());
}

TEST(ManifestTest, DurationsThatCannotBeAreBadLines) {
  TempDir dir;
  std::string text;
  for (const char* duration : {"1", "-0.5", "1e7", "0", "1e308", "null", "999999"})
    text += str_cat("{\"audio_filepath\":\"a\",\"duration\":", duration, "}\n");
  text += "{broken\n{\"audio_filepath\":\"a\",\"duration\":-1e-9}\n";
  write(dir.file("m.json"), text);
  // The first time from the lines, the second time from the index, as older versions left one.
  for (int time = 0; time < 2; ++time) {
    const Status status = Manifest::open({dir.file("m.json")}, quiet()).status();
    ASSERT_EQ(status.code(), StatusCode::kDataError);
    const std::string message = status.to_string();
    EXPECT_NE(message.find("lines 2-3, 5 and 8-9"), std::string::npos) << message;
    EXPECT_NE(message.find("m.json:2: duration is negative: -0.5 s"), std::string::npos) << message;
    EXPECT_NE(message.find("m.json:3: duration is 1e+07 s"), std::string::npos) << message;
    EXPECT_NE(message.find("m.json:5: duration is 1e+308 s"), std::string::npos) << message;
  }
  EXPECT_TRUE(ManifestIndex::open(dir.file("m.json"), {}).value()->from_cache());
  ManifestOptions options = quiet();
  options.skip_bad_lines = true;
  options.max_duration_s = 1000;
  const Manifest manifest = *Manifest::open({dir.file("m.json")}, options);
  EXPECT_EQ(manifest.size(), 3u);
  EXPECT_EQ(manifest.totals().bad_lines, 5u);
  EXPECT_EQ(manifest.totals().filtered, 1u);
  EXPECT_EQ(manifest.place(2), dir.file("m.json") + ":6");
}

TEST(ManifestTest, AnArrayIsNoManifest) {
  TempDir dir;
  const std::string entry = "{\"audio_filepath\":\"a\",\"duration\":1}";
  for (const std::string& text :
       {"[" + entry + "," + entry + "]", "\n [\n" + entry + ",\n" + entry + "]\n",
        std::string("\xEF\xBB\xBF[\n {\n  \"audio_filepath\": \"a\"\n }\n]\n")}) {
    // The second form has lines that are entries but for a comma.
    write(dir.file("m.json"), text);
    for (const bool skip : {false, true}) {
      ManifestOptions options = quiet();
      options.skip_bad_lines = skip;
      options.use_index_cache = false;
      const Status status = Manifest::open({dir.file("m.json")}, options).status();
      ASSERT_EQ(status.code(), StatusCode::kDataError) << text;
      EXPECT_NE(status.to_string().find("one JSON array"), std::string::npos) << status.to_string();
      EXPECT_NE(status.hint().find("jq -c"), std::string::npos);
    }
  }
}

TEST(ManifestTest, OtherFormsOfTextAreNamed) {
  TempDir dir;
  std::string wide = "\xFF\xFE";
  for (const char c : std::string("{\"audio_filepath\":\"a\",\"duration\":1}\n")) {
    wide += c;
    wide += '\0';
  }
  const std::vector<std::array<std::string, 3>> cases = {
      {wide, "UTF-16", "iconv"},
      {"\x1F\x8B\x08 packed\nlines\n", "gzip", "gunzip -c"},
      {"{\"audio_filepath\":\"a\",\"duration\": NaN}\n", "it has no NaN", "skip_bad_lines"},
      {"{\"audio_filepath\":\"a\",\"duration\":-Infinity}\n", "it has no NaN", "skip_bad_lines"},
      {"{\n \"audio_filepath\": \"a\",\n \"duration\": 1\n}\n", "several lines", "jq -c ."},
      {"{\"audio_filepath\":\"" + std::string(5000, 'a') + "\",\"duration\":1}\n",
       "the audio path has 5000 bytes", "skip_bad_lines"},
      {"{\"audio_filepath\":\"a\" \"duration\":1}\n", "not valid JSON", "skip_bad_lines"}};
  for (const auto& [text, what, hint] : cases) {
    write(dir.file("m.json"), text);
    ManifestOptions options = quiet();
    options.use_index_cache = false;
    const Status status = Manifest::open({dir.file("m.json")}, options).status();
    ASSERT_EQ(status.code(), StatusCode::kDataError) << what;
    EXPECT_NE(status.to_string().find(what), std::string::npos) << status.to_string();
    EXPECT_NE(status.hint().find(hint), std::string::npos) << status.hint();
    EXPECT_LT(status.to_string().size(), 1000u);
  }
}

TEST(ManifestTest, WhatIsNoFileIsWrongData) {
  TempDir dir;
  for (const std::string& path : {dir.path(), std::string("/dev/null"), dir.file("gone.json")}) {
    const Status status = Manifest::open({path}, quiet()).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError) << path;
    EXPECT_NE(status.to_string().find(path), std::string::npos) << status.to_string();
    EXPECT_NE(status.hint().find("manifest_filepath"), std::string::npos);
  }
}

TEST(ManifestTest, FiltersThatDropMuchAreNamed) {
  TempDir dir;
  std::string text;
  for (int i = 1; i <= 10; ++i)
    text += str_cat("{\"audio_filepath\":\"a\",\"duration\":", i, "}\n");
  write(dir.file("m.json"), text);
  const auto warning = [&](std::optional<double> low, std::optional<double> high) {
    ManifestOptions options = quiet();
    options.min_duration_s = low;
    options.max_duration_s = high;
    return filter_warning(Manifest::open({dir.file("m.json")}, options)->totals(), options);
  };
  EXPECT_EQ(warning({}, {}), "");
  EXPECT_EQ(warning(2.0, 9.0), "");  // a fifth
  EXPECT_NE(warning({}, 7.0).find("3 of 10 manifest lines (30.0%"), std::string::npos);
  EXPECT_NE(warning({}, 7.0).find("max_duration=7 (3 are longer)"), std::string::npos);
  EXPECT_EQ(warning({}, 7.0).find("min_duration"), std::string::npos);
  EXPECT_NE(warning(3.0, 9.0).find("min_duration=3 (2 are shorter) and max_duration=9 (1 are"),
            std::string::npos)
      << warning(3.0, 9.0);
}

TEST(ManifestTest, MissingFileIsNamed) {
  const Status status = Manifest::open({"/nowhere/m.json"}, quiet()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_NE(status.to_string().find("/nowhere/m.json"), std::string::npos);
}

TEST(ManifestIndexTest, IsReadBackFromItsFileAndMadeAgainWhenTheManifestChanges) {
  TempDir dir;
  const std::string path = dir.file("m.json");
  std::string text;
  for (int i = 0; i < 1000; ++i)
    text += str_cat("{\"audio_filepath\":\"d", i % 7, "/f", i, ".wav\",\"duration\":", 1 + i % 9,
                    ",\"offset\":", i % 3, "}\n");
  write(path, text);
  auto first = *ManifestIndex::open(path, {});
  EXPECT_FALSE(first->from_cache());
  auto second = *ManifestIndex::open(path, {});
  EXPECT_TRUE(second->from_cache());
  ASSERT_EQ(second->size(), 1000u);
  for (uint64_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(second->written_path(i), str_cat("d", i % 7, "/f", i, ".wav"));
    ASSERT_EQ(second->duration_s(i), static_cast<double>(1 + i % 9));
    ASSERT_EQ(second->offset_s(i), static_cast<double>(i % 3));
    ASSERT_EQ(second->line_number(i), i + 1);
  }
  EXPECT_EQ(first->source_hash(), second->source_hash());
  // Same size, other content.
  text[text.find("f500") + 1] = '9';
  write(path, text);
  auto third = *ManifestIndex::open(path, {});
  EXPECT_FALSE(third->from_cache());
  EXPECT_EQ(third->written_path(500), str_cat("d", 500 % 7, "/f900.wav"));
  // Another time but the same bytes: still believed.
  ASSERT_TRUE(Env::real().copy_file(path, dir.file("copy")).ok());
  ASSERT_TRUE(Env::real().rename(dir.file("copy"), path).ok());
  EXPECT_TRUE((*ManifestIndex::open(path, {}))->from_cache());
}

TEST(ManifestIndexTest, RemovesWhatKilledProcessesLeft) {
  TempDir dir;
  const std::string path = dir.file("m.json");
  write(path, "{\"audio_filepath\":\"a\"}\n");
  ProcessIdentity dead = this_process();
  dead.start_ticks -= 1;
  const std::string index = ManifestIndex::cache_file(path, "");
  write(str_cat(index, ".", process_tag(dead), ".7.tmp"), "torn");
  write(str_cat(index, ".", process_tag(this_process()), ".7.tmp"), "being written");
  write(str_cat(index, ".notes.tmp"), "the user's");
  ASSERT_TRUE(ManifestIndex::open(path, {}).ok());
  std::vector<std::string> left;
  for (const DirEntry& entry : *Env::real().list_dir(dir.path())) left.push_back(entry.name);
  EXPECT_EQ(left.size(), 4u) << join(left, " ");
  EXPECT_FALSE(Env::real().exists(str_cat(index, ".", process_tag(dead), ".7.tmp")));
}

TEST(ManifestIndexTest, GoesToTheFolderAsked) {
  TempDir dir, cache;
  write(dir.file("m.json"), "{\"audio_filepath\":\"a\"}\n");
  ManifestIndex::Options options;
  options.index_dir = cache.file("sub/indexes");
  EXPECT_FALSE((*ManifestIndex::open(dir.file("m.json"), options))->from_cache());
  EXPECT_TRUE((*ManifestIndex::open(dir.file("m.json"), options))->from_cache());
  EXPECT_FALSE(Env::real().exists(ManifestIndex::cache_file(dir.file("m.json"), "")));
  options.use_cache = false;
  EXPECT_FALSE((*ManifestIndex::open(dir.file("m.json"), options))->from_cache());
}

TEST(ManifestIndexTest, ReadOnlyFoldersAreNoProblem) {
  // /proc cannot hold files for anybody: the index lives in memory.
  TempDir dir;
  write(dir.file("m.json"), "{\"audio_filepath\":\"a\"}\n");
  ManifestIndex::Options options;
  options.index_dir = "/proc/aerie-cannot-be-made";
  auto index = ManifestIndex::open(dir.file("m.json"), options);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  EXPECT_EQ((*index)->size(), 1u);
}

TEST(ManifestIndexTest, DamagedFilesAreMadeAgain) {
  TempDir dir;
  const std::string path = dir.file("m.json");
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += str_cat("{\"audio_filepath\":\"d/f", i, "\",\"duration\":", i, ",\"channel\":", i % 2,
                    "}\nbad\n");
  write(path, text);
  (void)ManifestIndex::open(path, {});
  const std::string file = ManifestIndex::cache_file(path, "");
  const std::string good = read(file);
  ASSERT_GT(good.size(), 1000u);
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (int round = 0; round < 100; ++round) {
    std::string bad = good;
    if (round % 4 == 0) {
      bad.resize(random.below(good.size()));
    } else {
      bad[random.below(bad.size())] ^= static_cast<char>(1 + random.below(255));
    }
    write(file, bad);
    auto index = ManifestIndex::open(path, {});
    ASSERT_TRUE(index.ok());
    ASSERT_EQ((*index)->size(), 40u);
    ASSERT_EQ((*index)->bad_lines().size(), 40u);
    // Padding between sections is the only place that may change unnoticed.
    ASSERT_EQ((*index)->written_path(39), "d/f39");
    ASSERT_EQ((*index)->channel(39), 1);
  }
}

TEST(ManifestIndexTest, CountsLinesAcrossBlocks) {
  // Longer than the block that is read at once, with lines that cross its ends.
  TempDir dir;
  std::string text = "\xEF\xBB\xBF";
  const std::string filler(10000, 'x');
  for (int i = 0; i < 1200; ++i)
    text += str_cat("{\"audio_filepath\":\"f", i, "\",\"duration\":2,\"text\":\"", filler, "\"}\n");
  write(dir.file("m.json"), text);
  auto index = *ManifestIndex::build(dir.file("m.json"));
  ASSERT_EQ(index->size(), 1200u);
  for (uint64_t i = 0; i < 1200; i += 100) {
    EXPECT_EQ(index->written_path(i), str_cat("f", i));
    EXPECT_EQ(index->line_number(i), i + 1);
    EXPECT_EQ((*index->raw_line(i)).size(), 10000u + str_cat(i).size() + 45u);
  }
}

}  // namespace
}  // namespace aerie::data::manifest_test
