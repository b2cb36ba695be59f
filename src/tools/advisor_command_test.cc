// `aerie plan` and `aerie doctor` as a user calls them.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/process.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/schema/devices.h"
#include "aerie/train/run_lock.h"
#include "command_test.h"
#include "error_text.h"
#include "trial_runner.h"

namespace aerie::tools {
namespace {

nlohmann::json printed_json(Status (*command)(const std::vector<std::string>&),
                            const std::vector<std::string>& args) {
  const Outcome outcome = run(command, args);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  return nlohmann::json::parse(outcome.out, nullptr, false);
}

Status quiet(Status (*command)(const std::vector<std::string>&),
             const std::vector<std::string>& args) {
  return run(command, args).status;
}

TEST(PlanCommandTest, PredictsFromRecordedSteps) {
  const TempDir dir;
  const std::string page = dir.file("plan.html");
  const nlohmann::json plan =
      printed_json(run_plan, {"--gpus", "1,8,512", "--model", "L", "--json", "--html", page});
  ASSERT_EQ(plan["rows"].size(), 3u);
  EXPECT_NEAR(plan["rows"][0]["efficiency"].get<double>(), 1.0, 1e-9);
  EXPECT_LT(plan["rows"][2]["efficiency"].get<double>(), 1.0);
  EXPECT_FALSE(plan["network"]["measured"].get<bool>());
  EXPECT_TRUE(Env::real().exists(page));
  // A slower network costs more, and it is said what limits.
  const nlohmann::json slow = printed_json(run_plan, {"--gpus", "8", "--bandwidth", "1", "--json"});
  EXPECT_LT(slow["rows"][0]["efficiency"].get<double>(),
            plan["rows"][1]["efficiency"].get<double>());
  EXPECT_EQ(slow["rows"][0]["limited_by"], "bandwidth");
}

TEST(PlanCommandTest, TakesMeasuredSteps) {
  const TempDir dir;
  const std::string file = dir.file("step.json");
  ASSERT_TRUE(
      Env::real()
          .write_file(file, R"({"steps": [{"case": "mine", "step_ms": 100, "parameters": 1e6}],
                     "all_reduce": [{"ranks": 2, "bytes": 1e4, "seconds": 0.001},
                                    {"ranks": 2, "bytes": 1e7, "seconds": 0.1}]})")
          .ok());
  const nlohmann::json plan =
      printed_json(run_plan, {"--measured", file, "--gpus", "2,4", "--json"});
  EXPECT_EQ(plan["measured"]["name"], "mine");
  EXPECT_TRUE(plan["network"]["measured"].get<bool>());
  EXPECT_GT(plan["rows"][0]["reduce_ms"].get<double>(), 0.0);
  // What went through a step is not known: no column says 0.
  const std::string text = run(run_plan, {"--measured", file, "--gpus", "2"}).out;
  EXPECT_NE(text.find(" -              -  "), std::string::npos) << text;
}

TEST(PlanCommandTest, RefusesWhatItCannotPlan) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--gpus", "0"},
                                             {"--gpus", "8,x"},
                                             {"--model", "Q"},
                                             {"--batch", "3"},
                                             {"--batch", "1.5"},
                                             {"--gpus-per-node", "1.5"},
                                             {"--measured", "/nonexistent/file"},
                                             {"--bandwidth", "-1"},
                                             {"--bandwidth", "0"},
                                             {"--node-bandwidth", "nan"},
                                             {"--bucket-cap-mb", "0"},
                                             {"--latency", "1e300"},
                                             {"--hook", "int8"},
                                             {"--unknown"}}) {
    const Status status = quiet(run_plan, args);
    EXPECT_FALSE(status.ok()) << join(args, " ");
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << join(args, " ");
    EXPECT_LT(status.message().size(), 200u) << status.message();
    EXPECT_EQ(status.message().find("Could not convert"), std::string::npos) << status.message();
  }
}

TEST(PlanCommandTest, MoreRanksNeverMakeAStepShorter) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{}, {"--jitter", "3"}, {"--no-sync-batchnorm"}}) {
    std::vector<std::string> args{"--gpus", "2,3,4,7,8,9,16,64,100,512,4096", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const nlohmann::json plan = printed_json(run_plan, args);
    double before = 0.0;
    for (const nlohmann::json& row : plan["rows"]) {
      const double step_ms = row["step_ms"].get<double>();
      EXPECT_GE(step_ms, before) << row.dump();
      before = step_ms;
    }
    EXPECT_GT(before, 0.0);
  }
}

// 20 steps of 10 ms, `wait_ms` of them spent waiting for data.
void write_run(const TempDir& dir, double wait_ms) {
  std::string text =
      "{\"step\": 0, \"epoch\": 0, \"wall_s\": 0, \"kind\": \"event\", \"event\": \"start\", "
      "\"engine\": \"reference on cpu\", \"cpus\": 4, \"loader\": \"0 workers\"}"
      "\n";
  for (int step = 1; step <= 20; ++step)
    text += str_cat(R"({"step": )", step, R"(, "epoch": 0, "wall_s": )", 0.01 * step,
                    R"(, "kind": "train", "train_loss": 1, "step_ms": 10, "data_wait_ms": )",
                    wait_ms, R"(, "padding_share": 0.02, "audio_s_per_s": 100})", "\n");
  ASSERT_TRUE(Env::real().write_file(dir.file("metrics.jsonl"), text).ok());
}

TEST(DoctorCommandTest, ReadsTheFolderOfARun) {
  const TempDir dir;
  write_run(dir, 5.0);
  const nlohmann::json sick = printed_json(run_doctor, {dir.path(), "--json"});
  EXPECT_FALSE(sick["healthy"].get<bool>());
  ASSERT_EQ(sick["speed"].size(), 1u);
  EXPECT_EQ(sick["speed"][0]["id"], "num_workers");
  EXPECT_NEAR(sick["speed"][0]["estimated_speedup"].get<double>(), 2.0, 0.05);
  EXPECT_TRUE(sick["speed"][0]["measured_speedup"].is_null());
  const auto noted = [](const nlohmann::json& found) {
    return found["notes"].back().get<std::string>();
  };
  EXPECT_EQ(noted(sick), "gains are estimates from the run's records: its config.yaml is not here");
  // A pattern stands for the folder of its files.
  const auto with_noise = [&](const std::string& noise) {
    return Env::real().write_file(
        dir.file("config.yaml"),
        str_cat("model: {train_ds: {manifest_filepath: ", dir.path(),
                "/metrics.jsonl, tarred_audio_filepaths: ", dir.path(),
                "/audio__OP_0..3_CL_.tar, noise_manifest: ", noise, "}}\n"));
  };
  ASSERT_TRUE(with_noise(dir.file("gone.json")).ok());
  EXPECT_EQ(noted(printed_json(run_doctor, {dir.path(), "--json"})),
            str_cat("gains are estimates from the run's records: its data (", dir.file("gone.json"),
                    ") is not here"));
  ASSERT_TRUE(with_noise(dir.file("metrics.jsonl")).ok());
  EXPECT_EQ(noted(printed_json(run_doctor, {dir.path(), "--json", "--trials", "0"})),
            "gains are estimates from the run's records: nothing was tried (--trials 0)");
  // A process is at work there: this one.
  train::LockRecord lock;
  lock.owner = this_process();
  ASSERT_TRUE(Env::real().write_file(dir.file(train::kLockName), lock.to_json()).ok());
  EXPECT_EQ(noted(printed_json(run_doctor, {dir.path(), "--json"})),
            "gains are estimates from the run's records: the run is going on");
  // One that ran on a GPU says nothing about a machine without one.
  if (config::count_visible_gpus() == 0) {
    ASSERT_TRUE(Env::real().remove_file(dir.file(train::kLockName)).ok());
    std::string text = *Env::real().read_file(dir.file("metrics.jsonl"));
    text.replace(text.find("reference on cpu"), 16, "reference engine, cuda:0, precision 32");
    ASSERT_TRUE(Env::real().write_file(dir.file("metrics.jsonl"), text).ok());
    EXPECT_EQ(
        noted(printed_json(run_doctor, {dir.path(), "--json"})),
        "gains are estimates from the run's records: it ran on a GPU, and there is none here");
  }
  write_run(dir, 0.1);
  EXPECT_TRUE(printed_json(run_doctor, {dir.path(), "--json"})["healthy"].get<bool>());
}

TEST(DoctorCommandTest, PrintsSectionsAtTheMargin) {
  const TempDir dir;
  write_run(dir, 5.0);
  testing::internal::CaptureStdout();
  ASSERT_TRUE(run_doctor({dir.path()}).ok());
  const std::string text = testing::internal::GetCapturedStdout();
  // No end was recorded.
  EXPECT_EQ(text.rfind("Measured\n  run: the last record is of step 20; ", 0), 0u) << text;
  EXPECT_NE(text.find("\n  GPU: none was used\n  data: "), std::string::npos) << text;
  EXPECT_NE(text.find("\n\nSpeed, worth most first\n  1. "), std::string::npos) << text;
  EXPECT_NE(text.find("\nVerdict: slower than it need be"), std::string::npos) << text;
}

TEST(DoctorCommandTest, ReadsRunsOfEarlierVersions) {
  const nlohmann::json found = printed_json(run_doctor, {test_data("/resume_v1/run"), "--json"});
  EXPECT_EQ(found["measured"]["steps"], 13);
  EXPECT_GT(found["measured"]["step_ms"].get<double>(), 0.0);
  EXPECT_EQ(found["measured"]["checkpoints"]["written"], 3);
  EXPECT_EQ(found["measured"]["checkpoints"]["superseded"], 0);
  EXPECT_EQ(found["correctness"][0]["id"], "dropped_data");
  for (const char* key : {"healthy", "verdict", "measured", "notes", "correctness", "speed"})
    EXPECT_TRUE(found.contains(key)) << key;
}

TEST(DoctorCommandTest, SurvivesDamagedRecords) {
  const TempDir dir;
  write_run(dir, 0.1);
  std::string text = *Env::real().read_file(dir.file("metrics.jsonl"));
  text.insert(text.size() / 2, "\x01{\"step\": 1e999, \"kind\": 7}\n[[[[\n");
  ASSERT_TRUE(Env::real().write_file(dir.file("metrics.jsonl"), text).ok());
  ASSERT_TRUE(Env::real().write_file(dir.file("config.yaml"), "model: [\n").ok());
  const nlohmann::json found = printed_json(run_doctor, {dir.path(), "--json"});
  EXPECT_EQ(found["correctness"][0]["id"], "damaged_records");
}

// Several ranks speak through their logs alone.
TEST(TrialRunnerTest, KnowsWantOfMemory) {
  const auto code = [](int exit_code, const char* text) {
    return trial_error(exit_code, text, "a trial").code();
  };
  EXPECT_EQ(code(1, "warning\nerror: out of memory: 1.2 GiB of device memory are needed\n"),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(code(137, "Killed"), StatusCode::kOutOfMemory);
  const std::string filler(2000, '.');
  for (const char* how :
       {"[train] out of memory: another rank has no memory left",
        "rank 1 on here was ended by SIGKILL (by somebody, or for want of memory)"})
    EXPECT_EQ(code(1, str_cat(how, "\n", filler, "\n").c_str()), StatusCode::kOutOfMemory) << how;
  // What was survived is not what it died of.
  EXPECT_EQ(code(1, "[train] out of memory at step 3: cut into 2 parts\nerror: the disk is full\n"),
            StatusCode::kUnavailable);
  EXPECT_EQ(code(2, "error: model.train_ds.batch_sise is not known\n"),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(3, "error: x.json: no such file\n"), StatusCode::kDataError);
  // Messages that name the piece say what it means.
  EXPECT_EQ(error_text(out_of_memory("1 GiB is needed")), "out of memory: 1 GiB is needed");
  EXPECT_EQ(error_text(invalid_argument("x")), "x");
}

TEST(DoctorCommandTest, RefusesWhatIsNoRun) {
  const TempDir dir;
  EXPECT_EQ(quiet(run_doctor, {dir.path()}).code(), StatusCode::kDataError);
  const Status missing = quiet(run_doctor, {dir.file("nowhere")});
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(missing.message().find("nowhere: there is no such folder"), std::string::npos);
  ASSERT_TRUE(Env::real().write_file(dir.file("metrics.jsonl"), "").ok());
  EXPECT_EQ(quiet(run_doctor, {dir.file("metrics.jsonl")}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(quiet(run_doctor, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(quiet(run_doctor, {"x", "--steps", "none"}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(quiet(run_doctor, {"x", "--steps"}).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aerie::tools
