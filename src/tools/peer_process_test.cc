#include "peer_process.h"

#include <csignal>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"

namespace aerie::tools {
namespace {

TEST(PeerProcessTest, PassesArgumentsAndVariablesWithoutAShell) {
  const auto out =
      run_process({"sh", "-c", "printf '%s|%s' \"$1\" \"$PEER_X\"; exit 3", "sh", "a b; echo no"},
                  {"PEER_X=$HOME"});
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->exit_code, 3);
  EXPECT_EQ(out->text, "a b; echo no|$HOME");
}

// Somebody's `kill -9` must leave no trial behind that holds a GPU.
TEST(PeerProcessTest, EndsWithTheProcessThatStartedIt) {
  const TempDir dir;
  const std::string file = dir.file("pid");
  const pid_t middle = ::fork();
  ASSERT_GE(middle, 0);
  if (middle == 0) {
    (void)run_process(
        {"sh", "-c", "echo $$ > \"$1.new\"; mv \"$1.new\" \"$1\"; exec sleep 300", "sh", file}, {});
    ::_exit(0);
  }
  const auto within = [](auto done) {
    for (int i = 0; i < 3000 && !done(); ++i) ::usleep(10'000);
    return done();
  };
  EXPECT_TRUE(within([&] { return Env::real().exists(file); }));
  ::kill(middle, SIGKILL);
  ::waitpid(middle, nullptr, 0);
  const auto text = Env::real().read_file(file);
  ASSERT_TRUE(text.ok());
  const auto pid = static_cast<pid_t>(std::atoi(text->c_str()));
  ASSERT_GT(pid, 1);
  // A child that nobody waits for may stay as a zombie.
  const auto gone = [&] {
    const auto stat = Env::real().read_file("/proc/" + std::to_string(pid) + "/stat", 4096);
    return !stat.ok() || stat->find(") Z") != std::string::npos;
  };
  EXPECT_TRUE(within(gone));
}

TEST(PeerProcessTest, AMissingProgramIsNamed) {
  const auto out = run_process({"/no/such/python"}, {});
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.status().message().find("/no/such/python"), std::string::npos);
}

TEST(PeerProcessTest, FindsTheResultAmongOtherLines) {
  const auto found = find_peer_result(
      "loading\n{not json\n{\"ms\": \"x\"}\n{\"what\":\"NeMo\",\"ms\":12.5}\n{\"ms\":1}\n");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->ms, 12.5);
  EXPECT_FALSE(find_peer_result("nothing\n{\"ms\":0}\n").ok());
}

// Stands in for Python: prints its arguments as a result.
TEST(PeerProcessTest, RunsTheScriptOfATree) {
  ::unsetenv("NEMO_TREE");
  const TempDir dir;
  Env& env = Env::real();
  ASSERT_TRUE(env.write_file(dir.file("bench_step.py"), "").ok());
  ASSERT_TRUE(env.write_file(dir.file("python"),
                             "#!/bin/sh\necho \"{\\\"ms\\\": 2.5, \\\"case\\\": \\\"$2\\\", "
                             "\\\"tree\\\": \\\"$NEMO_TREE\\\"}\"\n")
                  .ok());
  ASSERT_TRUE(env.create_dir(dir.file("nemo")).ok());
  ASSERT_TRUE(run_process({"chmod", "+x", dir.file("python")}, {}).ok());
  PeerRequest request;
  request.tree = dir.path();
  request.python = dir.file("python");
  request.batch = 4;
  request.seconds = 7.5;
  request.precision = "bf16-mixed";
  request.d_model = 64;
  request.layers = 2;
  const auto result = run_peer_step(request);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->ms, 2.5);
  EXPECT_NE(result->json.find("4x7.5xbf16x64x2"), std::string::npos) << result->json;
  EXPECT_NE(result->json.find("\"" + dir.path() + "\""), std::string::npos) << result->json;

  request.model_file = "model.yaml";  // that script knows sizes only
  EXPECT_EQ(run_peer_step(request).status().code(), StatusCode::kUnsupported);
  request.model_file.clear();
  request.tf32 = true;  // nor does it know this
  EXPECT_EQ(run_peer_step(request).status().code(), StatusCode::kUnsupported);
  request.tf32 = false;
  request.tree = dir.file("nothing");
  EXPECT_EQ(run_peer_step(request).status().code(), StatusCode::kNotFound);
}

TEST(PeerProcessTest, AFailingScriptShowsItsLastWords) {
  const TempDir dir;
  ASSERT_TRUE(Env::real().write_file(dir.file("bench_step.py"), "echo no module; exit 1\n").ok());
  PeerRequest request;
  request.tree = dir.path();
  request.python = "sh";
  const auto result = run_peer_step(request);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("no module"), std::string::npos);
}

}  // namespace
}  // namespace aerie::tools
