// Every command of the real binary on paths and values that hold what a terminal obeys: nothing of
// it may reach standard output, standard error or a log, and --json must still say the true names.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "process.h"
#include "run_command.h"

namespace aerie::crash {
namespace {

using Json = nlohmann::ordered_json;

// ESC c resets a terminal, U+009B is CSI in one character.
const std::string kName =
    "a\x1b"
    "cred\nFORGED line\rback\x7f\xc2\x9b"
    "31m";
constexpr const char* kPlace = "/PLACE";  // stands for the folder of that name in configurations

std::string read(const std::string& file) {
  auto text = Env::real().read_file(file);
  return text.ok() ? std::move(text).value() : "";
}

// The first thing in `text` that must not be in it, or "".
std::string obeyed(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool second_block =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || second_block)
      return str_cat("byte ", int{byte}, " at ", i, " of:\n", text);
  }
  if (text.find("\nFORGED") != std::string::npos) return "a line of its own in:\n" + text;
  return "";
}

class HostileNamesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    place_ = folder_->path() + "/" + kName;
    ASSERT_TRUE(Env::real().create_dirs(place_).ok());
    write_configuration();
  }
  static void TearDownTestSuite() { delete folder_; }

  // Output of a command; its exit code must be `code`, or any but 0 for kFails.
  static constexpr int kFails = -1;
  static std::string run(std::vector<std::string> args, int code = 0) {
    const std::string log = folder_->file("log"), what = join(args, " ");
    (void)Env::real().remove_file(log);
    args.insert(args.begin(), aerie_binary());
    Process process(args, {log, 0});
    const int status = process.wait();
    EXPECT_TRUE(code == kFails ? status > 0 && status < 4 : status == code)
        << status << " from " << what << "\n"
        << read(log);
    const std::string out = read(log);
    EXPECT_EQ(obeyed(out), "") << what;
    return out;
  }
  static Json parsed(const std::string& text) {
    Json json = Json::parse(text, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << text;
    return json.is_object() ? json : Json::object();
  }
  static std::string at(const std::string& name) { return place_ + "/" + name; }

  // A configuration of a tiny run with everything under the hostile folder.
  static void write_configuration() {
    std::vector<std::string> args =
        train_command(str_cat(kPlace, "/corpus"), str_cat(kPlace, "/runs"), "run", 4);
    args[1] = "show";
    args.insert(args.begin() + 1, "config");
    args.insert(args.begin() + 3, {"--cfg", "job"});
    const std::string log = folder_->file("config.log");
    Process process(args, {log, 0});
    ASSERT_EQ(process.wait(), 0) << read(log);
    std::string yaml;
    for (std::string line : split(read(log), '\n')) {
      if (const size_t found = line.find(kPlace); found != std::string::npos) {
        const std::string rest = line.substr(found + std::string(kPlace).size());
        line = str_cat(line.substr(0, found), "\"", folder_->path(),
                       "/a\\ecred\\nFORGED line\\rback\\x7f\\x9b31m", rest, "\"");
      }
      yaml += line + "\n";
    }
    ASSERT_TRUE(Env::real().write_file(at("run.yaml"), yaml).ok());
  }

  static TempDir* folder_;
  static std::string place_;
};

TempDir* HostileNamesTest::folder_ = nullptr;
std::string HostileNamesTest::place_;

TEST_F(HostileNamesTest, NoCommandLetsThemReachATerminalOrALog) {
  // Data.
  const std::string corpus = at("corpus"), train = corpus + "/train.json";
  std::vector<std::string> synth = synth_command(corpus);
  synth.erase(synth.begin());
  EXPECT_NE(run(synth).find("FORGED"), std::string::npos) << "the name is shown, escaped";
  EXPECT_NE(run(synth).find("holds this corpus already"), std::string::npos);
  synth.push_back("--json");
  EXPECT_EQ(parsed(run(synth))["out"], corpus);
  EXPECT_NE(run({"data", "stats", "--manifest", train}).find("FORGED"), std::string::npos);
  run({"data", "stats", "--manifest", train, "--json"});
  run({"data", "stats", "--config-path", place_, "--config-name", "run"});
  EXPECT_NE(run({"data", "validate", "--manifest", train}).find("FORGED"), std::string::npos);
  run({"data", "pack", "--manifest", train, "--out", at("pack")});
  EXPECT_EQ(
      parsed(run({"data", "pack", "--manifest", train, "--out", at("pack"), "--json"}))["out"],
      at("pack"));
  // Members of archives may not be called so: recordings from elsewhere, into such a folder.
  run({"data", "shard", "--manifest", train, "--out", at("tarred"), "--num_shards", "2"}, 3);
  synth = synth_command(folder_->file("plain"));
  synth.erase(synth.begin());
  run(synth);
  const std::string plain = folder_->file("plain/train.json");
  EXPECT_NE(run({"data", "shard", "--manifest", plain, "--out", at("tarred"), "--num_shards", "2"})
                .find("FORGED"),
            std::string::npos);
  EXPECT_EQ(parsed(run({"data", "shard", "--manifest", plain, "--out", at("tarred2"),
                        "--num_shards", "2", "--json"}))["target_dir"],
            at("tarred2"));
  run({"bench", "data", "--manifest", train, "--seconds", "0.1", "--warmup", "0"});
  // A recording that is not there, one that is none.
  ASSERT_TRUE(Env::real().write_file(at("x.wav"), "no audio").ok());
  const Json bad = {{"audio_filepath", at("x.wav")}, {"duration", 1.0}};
  const Json absent = {{"audio_filepath", at("y\x1b.wav")}, {"duration", 1.0}};
  ASSERT_TRUE(
      Env::real().write_file(at("bad.json"), bad.dump() + "\n" + absent.dump() + "\n").ok());
  EXPECT_NE(run({"data", "validate", "--manifest", at("bad.json")}, 3).find("x.wav"),
            std::string::npos);
  run({"data", "stats", "--manifest", at("bad.json")});
  run({"data", "pack", "--manifest", at("bad.json"), "--out", at("p2"), "--max_bad_fraction", "1"});
  run({"data", "shard", "--manifest", at("bad.json"), "--out", at("s2"), "--num_shards", "1"}, 3);

  // Configurations.
  const std::string config = at("run.yaml");
  run({"config", "show", config});
  run({"config", "show", config, "--cfg", "job"});
  EXPECT_EQ(parsed(run({"config", "show", config, "--json"}))["config"]["exp_manager"]["exp_dir"],
            at("runs"));
  EXPECT_NE(run({"config", "validate", config}).find("FORGED"), std::string::npos);
  EXPECT_EQ(parsed(run({"config", "validate", config, "--json"}))["file"], config);
  EXPECT_NE(run({"config", "diff", config, config}).find("FORGED"), std::string::npos);
  run({"config", "diff", "--config-path", config_dir("/nest"), "nest_quickstart", config});
  run({"config", "validate", config, "+nonsense\x1b=1"}, 2);
  ASSERT_TRUE(Env::real().write_file(at("odd.yaml"), "\"k\\e\\r\": \"v\\e\\r\"\n").ok());
  run({"config", "show", at("odd.yaml")});
  run({"config", "diff", at("odd.yaml"), config});

  // A run, and what reads it.
  EXPECT_NE(run({"train", config, "--dry-run"}).find("FORGED"), std::string::npos);
  run({"train", config, "--dry-run", "--json"});
  EXPECT_NE(run({"train", config}).find("FORGED"), std::string::npos);
  const std::string runs = at("runs/run");
  size_t logs = 0;
  const auto entries = Env::real().list_dir(runs);
  ASSERT_TRUE(entries.ok());
  for (const DirEntry& entry : *entries) {
    if (entry.is_dir || (!ends_with(entry.name, ".txt") && !ends_with(entry.name, ".log")))
      continue;
    ++logs;
    EXPECT_EQ(obeyed(read(runs + "/" + entry.name)), "") << entry.name;
  }
  EXPECT_GE(logs, 3u) << "nemo_log, nemo_error_log, cmd-args.log";
  EXPECT_NE(run({"report", runs}).find("FORGED"), std::string::npos);
  EXPECT_NE(run({"inspect", runs}).find("FORGED"), std::string::npos);
  const std::string nemo = runs + "/checkpoints/run.nemo";
  EXPECT_NE(run({"inspect", nemo}).find("FORGED"), std::string::npos);
  EXPECT_EQ(parsed(run({"inspect", nemo, "--json"}))["file"], nemo);
  for (const char* out : {"w.safetensors", "w.nemo", "w.ckpt", "w.pt"})
    EXPECT_NE(run({"convert", runs, at(out)}).find("FORGED"), std::string::npos) << out;
  run({"convert", at("w.pt"), at("v.nemo")}, 2);
  run({"convert", at("bad.json"), at("v.nemo")}, 3);
  EXPECT_NE(run({"eval", config, "--model", nemo}).find("FORGED"), std::string::npos);
  EXPECT_EQ(parsed(run({"eval", config, "--model", nemo, "--json"}))["checkpoint"], nemo);
  const std::string dev = corpus + "/dev.json";
  EXPECT_NE(
      run({"features", "--model", nemo, "--input", dev, "--output", at("features")}).find("FORGED"),
      std::string::npos);
  run({"features", "--model", nemo, "--input", at("bad.json"), "--output", at("f2")}, 3);
  const std::string probed =
      run({"probe", "--model", nemo, "--corpus", corpus, "--train-utterances", "8",
           "--dev-utterances", "2", "--test-utterances", "2", "--speaker-utterances", "2",
           "--max-iterations", "2", "--no-random", "--no-log-mel", "--label",
           "speaker,o\x1b"
           "dd"});
  EXPECT_NE(probed.find("FORGED"), std::string::npos);

  // Nothing there.
  const std::string none = at("none");
  run({"data", "stats", "--manifest", none}, kFails);
  run({"data", "validate", "--manifest", none}, kFails);
  run({"config", "show", none + ".yaml"}, kFails);
  run({"inspect", none}, kFails);
  run({"report", none}, kFails);
  run({"convert", none, at("z.pt")}, kFails);
  run({"features", "--model", none, "--input", dev, "--output", at("f3")}, kFails);
  run({"bench", "data", "--manifest", none}, kFails);
  run({kName}, kFails);
  run({"data", kName}, kFails);
  run({"report", "--" + kName}, kFails);
}

}  // namespace
}  // namespace aerie::crash
