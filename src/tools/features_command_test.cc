// aerie features and aerie probe, run as a user runs them.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/device/gpu.h"
#include "command_test.h"

namespace aerie::tools {
namespace {

const std::string kFolder = test_data("/golden/plain");

TEST(FeaturesCommandTest, TakesNemosArguments) {
  const TempDir temp;
  const Outcome outcome = run(run_features, {"--model_path=" + kFolder + "/init.nemo",
                                             "-i",
                                             kFolder + "/val.json",
                                             "-o",
                                             temp.file("out"),
                                             "-l",
                                             "last",
                                             "-b",
                                             "2",
                                             "-w",
                                             "1",
                                             "-d",
                                             "cpu",
                                             "-t",
                                             "wav",
                                             "-mc",
                                             "1000",
                                             "--amp_dtype",
                                             "bfloat16",
                                             "--json"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json.at("recordings"), 4);
  EXPECT_EQ(json.at("files"), 4);
  EXPECT_EQ(json.at("layers"), 1);
  EXPECT_TRUE(json.at("bad").empty());
  EXPECT_EQ(json.at("manifest"), temp.file("out/features.json"));
  EXPECT_TRUE(Env::real().exists(temp.file("out/features.json")));
}

TEST(FeaturesCommandTest, BadFilesGiveExitCode3) {
  const TempDir temp;
  Env& env = Env::real();
  ASSERT_TRUE(env.copy_file(kFolder + "/clips/val00.wav", temp.file("good.wav")).ok());
  ASSERT_TRUE(env.write_file(temp.file("bad.wav"), "not audio").ok());
  const Outcome outcome =
      run(run_features, {"--model", kFolder + "/init.nemo", "--input", temp.path(), "--output",
                         temp.file("out"), "--device", "cpu"});
  EXPECT_EQ(outcome.exit_code(), 3);
  EXPECT_HAS(outcome.status.to_string(), "1 of 2 recordings have no features");
  EXPECT_HAS(outcome.status.to_string(), "bad.wav");
  EXPECT_HAS(outcome.out, "1 files for 2 recordings");
  EXPECT_TRUE(env.exists(temp.file("out/features.json")));
}

TEST(FeaturesCommandTest, WrongCommandLinesGiveExitCode2) {
  const TempDir temp;
  const std::vector<std::string> good{"--model_path", kFolder + "/init.nemo", "--input",
                                      kFolder + "/val.json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), good.begin(), good.end());
    return run(run_features, more);
  };
  EXPECT_EQ(with({}).exit_code(), 2);  // no --output
  EXPECT_HAS(with({}).status.to_string(), "--output");
  EXPECT_EQ(with({"-o", temp.file("x"), "--layer", "all"}).exit_code(), 2);
  EXPECT_EQ(with({"-o", temp.file("x"), "--batch_size", "many"}).exit_code(), 2);
  EXPECT_EQ(with({"-o", temp.file("x"), "-d", "cpu", "--layers", "99"}).exit_code(), 2);
  if (device::driver().gpus.empty()) {
    const Outcome gpu = with({"-o", temp.file("x"), "--device", "cuda"});
    EXPECT_EQ(gpu.exit_code(), 2);
    EXPECT_HAS(gpu.status.to_string(), "--device cuda: the driver shows no GPU");
  }
  EXPECT_FALSE(Env::real().exists(temp.file("x")));
  const Outcome help = run(run_features, {"--help"});
  EXPECT_TRUE(help.status.ok());
  EXPECT_HAS(help.out, "example: aerie features");
}

TEST(ProbeCommandTest, WrongCommandLinesGiveExitCode2) {
  EXPECT_EQ(run(run_probe, {}).exit_code(), 2);
  const std::string model = kFolder + "/init.nemo";
  EXPECT_HAS(run(run_probe, {"--model", model}).status.to_string(), "--train, --dev and --test");
  EXPECT_EQ(run(run_probe, {"--model", model}).exit_code(), 2);
  const Outcome nowhere =
      run(run_probe, {"--model", model, "--corpus", "/nowhere", "--device", "cpu"});
  EXPECT_EQ(nowhere.exit_code(), 2);
  EXPECT_HAS(nowhere.status.to_string(), "/nowhere/train.json");
  // NeMo's name of the option works here too.
  EXPECT_HAS(run(run_probe, {"--model_path", model}).status.to_string(), "--train, --dev and");
  EXPECT_EQ(run(run_probe, {"--model", model, "--sed", "1"}).exit_code(), 2);
  const Outcome help = run(run_probe, {"--help"});
  EXPECT_TRUE(help.status.ok());
  EXPECT_HAS(help.out, "example: aerie probe");
}

}  // namespace
}  // namespace aerie::tools
