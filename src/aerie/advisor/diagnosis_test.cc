// Planted illnesses in made-up records: each is named first, and a healthy run is called healthy.
#include "aerie/advisor/diagnosis.h"

#include <gtest/gtest.h>

namespace aerie::advisor {
namespace {

using metrics::Record;
using metrics::RecordKind;

// 200 steps of 100 ms, logged every 10.
struct PlantedRun {
  double step_ms = 100.0, wait_ms = 1.0, padding = 0.05;
  double gpu_util = 99.0;  // negative: no GPU
  double optimizer_ms = 4.0;
  int64_t validate_every = 0;  // steps
  double validation_s = 1.0;
  int64_t save_every = 0;
  double blocked_ms = 5.0;
  int64_t written_every = 0;  // steps; 0: nothing is recorded of the writer
  double write_cpu_ms = 0.0;
  int64_t cpus = 16;
  int64_t nans = 0;
  std::string engine = "fast (cuda:0, bf16-mixed)", loader = "8 workers, 16 batches ahead";
  std::string extra_config;
  int64_t batch_size = 32;
  std::string precision = "bf16-mixed";

  ui::ReportInput make() const {
    ui::ReportInput out;
    Record start(RecordKind::kEvent, 0, 0, 0.0);
    start.add("event", "start").add("engine", engine).add("cpus", cpus).add("loader", loader);
    start.add("family", "nest");
    out.records.push_back(start);
    double wall = 0.0;
    for (int64_t step = 1; step <= 200; ++step) {
      wall += step_ms * 1e-3;
      if (step % 10 == 0) {
        Record record(RecordKind::kTrain, step, 0, wall);
        record.add("train_loss", 1.0).add("step_ms", step_ms).add("data_wait_ms", wait_ms);
        record.add("padding_share", padding).add("samples_per_s", 320.0);
        if (gpu_util >= 0.0) record.add("gpu_util", gpu_util);
        if (engine.rfind("fast", 0) == 0) {
          record.add("forward_backward_ms", step_ms - optimizer_ms);
        } else {
          record.add("forward_ms", (step_ms - wait_ms - optimizer_ms) / 3.0);
          record.add("backward_ms", (step_ms - wait_ms - optimizer_ms) / 1.5);
        }
        record.add("optimizer_ms", optimizer_ms);
        out.records.push_back(record);
      }
      if (step <= nans) {
        Record nan(RecordKind::kEvent, step, 0, wall);
        nan.add("event", "nan").add("bad_step", step);
        out.records.push_back(nan);
      }
      if (validate_every > 0 && step % validate_every == 0) {
        wall += validation_s;
        Record record(RecordKind::kVal, step, 0, wall);
        record.add("val_loss", 1.0).add("validation_s", validation_s);
        out.records.push_back(record);
      }
      if (save_every > 0 && step % save_every == 0) {
        wall += blocked_ms * 1e-3;
        Record record(RecordKind::kEvent, step, 0, wall);
        record.add("event", "save").add("blocked_ms", blocked_ms);
        out.records.push_back(record);
      }
      if (written_every > 0 && step % written_every == 0) {
        Record record(RecordKind::kEvent, step, 0, wall);
        record.add("event", "saved").add("bytes", 50'000'000).add("ok", true);
        record.add("write_ms", 0.9 * step_ms * static_cast<double>(written_every));
        record.add("write_cpu_ms", write_cpu_ms);
        if (written_every > save_every) record.add("superseded", written_every / save_every - 1);
        out.records.push_back(record);
      }
    }
    Record end(RecordKind::kEvent, 200, 0, wall);
    end.add("event", "end").add("reason", "max_steps").add("healthy", true);
    out.records.push_back(end);
    out.config_yaml = "model:\n  train_ds:\n    batch_size: " + std::to_string(batch_size) +
                      "\n    pin_memory: true\ntrainer:\n  precision: " + precision + "\n" +
                      extra_config;
    return out;
  }
};

Diagnosis diagnosis_of(const PlantedRun& run, const std::string& storage = {}) {
  return diagnose(read_facts(run.make()), storage);
}

std::string first_cause(const Diagnosis& diagnosis) {
  return diagnosis.speed.empty() ? "" : diagnosis.speed.front().id;
}

TEST(DiagnosisTest, HealthyRunIsCalledHealthy) {
  PlantedRun run;
  run.validate_every = 200;
  run.save_every = 100;
  const Diagnosis gpu = diagnosis_of(run);
  EXPECT_TRUE(gpu.healthy()) << gpu.to_text();
  EXPECT_EQ(gpu.verdict().rfind("healthy: compute-bound", 0), 0u) << gpu.verdict();
  run.gpu_util = -1.0;
  run.engine = "reference (cpu)";
  const Diagnosis cpu = diagnosis_of(run);
  EXPECT_TRUE(cpu.healthy()) << cpu.to_text();
}

TEST(DiagnosisTest, NamesNoWorkers) {
  PlantedRun run;
  run.wait_ms = 60.0;
  run.gpu_util = 40.0;
  run.loader = "0 workers";
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(first_cause(out), "num_workers") << out.to_text();
  EXPECT_EQ(out.speed[0].change, "model.train_ds.num_workers=auto");
  EXPECT_NEAR(out.speed[0].estimated_speedup(), 2.5, 1e-9);  // 60 of 100 ms
  EXPECT_NE(out.to_text().find("idle more than half"), std::string::npos);
}

TEST(DiagnosisTest, NamesSlowReaders) {
  PlantedRun run;
  run.wait_ms = 60.0;
  EXPECT_EQ(first_cause(diagnosis_of(run)), "num_workers");  // 8 of 16 CPUs
  EXPECT_EQ(first_cause(diagnosis_of(run, "network file system (nfs)")), "slow_storage");
  EXPECT_EQ(first_cause(diagnosis_of(run, "rotational disk")), "slow_storage");
  run.loader = "16 workers";
  EXPECT_EQ(first_cause(diagnosis_of(run, "solid-state disk")), "slow_loading");
}

// What the loader recorded: 8 threads for 20 s.
Record loader_event(double disk, double decode, double blocked, double cpu_share,
                    const char* limit) {
  Record out(RecordKind::kEvent, 200, 0, 20.0);
  out.add("event", "loader").add("limit", limit).add("workers", 8).add("loader_s", 20.0);
  out.add("batches", 200).add("read_busy_s", 160.0 * (disk + decode)).add("read_bytes", 400e6);
  out.add("read_wait_share", disk + decode > 0.0 ? disk / (disk + decode) : 0.0);
  out.add("side", "noise").add("side_busy_s", 8.0).add("finish", "mix").add("finish_busy_s", 16.0);
  out.add("batch_bytes", 200 * 30.8e6).add("blocked_s", 160.0 * blocked).add("starved_s", 0.0);
  out.add("consumer_wait_s", 10.0).add("consumer_work_s", 10.0);
  return out.add("process_cpu_s", 20.0 * 16 * cpu_share);
}

Diagnosis diagnosis_with(const PlantedRun& run, const Record& event) {
  ui::ReportInput input = run.make();
  input.records.push_back(event);
  return diagnose(read_facts(input));
}

TEST(DiagnosisTest, ReadsWhatTheLoaderDid) {
  PlantedRun run;
  run.wait_ms = 60.0;
  const Diagnosis disk = diagnosis_with(run, loader_event(0.7, 0.1, 0.05, 0.2, "disk"));
  const LoaderFacts& loader = disk.facts.loader;
  EXPECT_NEAR(loader.disk_share, 0.7, 1e-9);
  EXPECT_NEAR(loader.decode_share, 0.1, 1e-9);
  EXPECT_NEAR(loader.side_share, 0.05, 1e-9);
  EXPECT_NEAR(loader.finish_share, 0.1, 1e-9);
  EXPECT_NEAR(loader.read_mb_per_s, 20.0, 1e-9);
  EXPECT_NEAR(loader.needed_mb_per_s, 40.0, 1e-9);
  EXPECT_NEAR(loader.cpu_share, 0.2, 1e-9);
  EXPECT_EQ(first_cause(disk), "slow_storage") << disk.to_text();
  EXPECT_NE(disk.to_text().find("20.0 MB/s are read and 40.0 are needed"), std::string::npos);
  EXPECT_NE(disk.to_json().find("\"needed_mb_per_s\":40.0"), std::string::npos);
}

TEST(DiagnosisTest, TellsDecodingFromBursts) {
  PlantedRun run;
  run.wait_ms = 60.0;
  // Threads of half of the CPUs, all CPUs busy: more threads would not help.
  const Diagnosis busy = diagnosis_with(run, loader_event(0.05, 0.8, 0.0, 0.97, "decode"));
  EXPECT_EQ(first_cause(busy), "slow_loading") << busy.to_text();
  EXPECT_EQ(first_cause(diagnosis_with(run, loader_event(0.05, 0.8, 0.0, 0.5, "decode"))),
            "num_workers");
  // Idle threads, and training waits all the same.
  run.extra_config = "";
  const Diagnosis bursts = diagnosis_with(run, loader_event(0.05, 0.2, 0.7, 0.3, "decode"));
  EXPECT_EQ(first_cause(bursts), "prefetch_factor") << bursts.to_text();
  EXPECT_EQ(bursts.speed[0].change, "model.train_ds.prefetch_factor=4");
}

TEST(DiagnosisTest, NamesPageableMemory) {
  PlantedRun run;
  run.step_ms = 10.0;  // 30.8 MB take 2.08 ms longer
  run.wait_ms = 0.1;
  run.optimizer_ms = 1.0;
  ui::ReportInput input = run.make();
  input.records.push_back(loader_event(0.05, 0.2, 0.7, 0.3, "consumer"));
  EXPECT_TRUE(diagnose(read_facts(input)).healthy());
  input.config_yaml = "model:\n  train_ds:\n    batch_size: 32\n    pin_memory: false\n";
  const Diagnosis out = diagnose(read_facts(input));
  EXPECT_EQ(first_cause(out), "pin_memory") << out.to_text();
  EXPECT_NEAR(out.speed[0].gain_share, 0.208 * 0.99, 1e-3);
}

TEST(DiagnosisTest, ValidationIntervalsStayInsideEpochs) {
  PlantedRun run;
  run.validate_every = 10;
  run.validation_s = 1.0;
  run.extra_config = "  check_val_every_n_epoch: 1\n";
  ui::ReportInput input = run.make();
  input.records.front().add("batches_per_epoch", 400);
  EXPECT_EQ(diagnose(read_facts(input)).speed[0].change, "trainer.val_check_interval=190");
  ui::ReportInput shorter = run.make();
  shorter.records.front().add("batches_per_epoch", 50);
  EXPECT_EQ(diagnose(read_facts(shorter)).speed[0].change, "trainer.val_check_interval=1.0");
  EXPECT_EQ(diagnose(read_facts(shorter)).speed[0].advice.rfind("validate once an epoch", 0), 0u);
  ui::ReportInput once = run.make();
  once.records.front().add("batches_per_epoch", 10);
  EXPECT_EQ(diagnose(read_facts(once)).speed[0].change, "trainer.check_val_every_n_epoch=19");
}

TEST(RunFactsTest, ThroughputIsByTheClock) {
  PlantedRun run;  // 32 samples in steps of 100 ms
  run.validate_every = 10;
  run.validation_s = 1.0;
  const RunFacts facts = read_facts(run.make());
  EXPECT_NEAR(facts.throughput_in_steps, 320.0, 1e-9);
  EXPECT_NEAR(facts.throughput, 160.0, 8.0);
  // A step is a micro-batch: records are of windows of four.
  run = {};
  run.extra_config = "  accumulate_grad_batches: 4\naerie:\n  step_unit: micro\n";
  EXPECT_NEAR(read_facts(run.make()).throughput, 80.0, 1e-6);
}

TEST(DiagnosisTest, NamesSmallBatches) {
  PlantedRun run;
  run.batch_size = 2;
  const Diagnosis gpu = diagnosis_of(run);
  EXPECT_EQ(first_cause(gpu), "batch_size") << gpu.to_text();
  // The CPU's fixed part is measured: 40 of 100 ms, spread over four times the samples.
  run.gpu_util = -1.0;
  run.engine = "reference (cpu)";
  run.optimizer_ms = 40.0;
  const Diagnosis cpu = diagnosis_of(run);
  EXPECT_EQ(first_cause(cpu), "batch_size") << cpu.to_text();
  EXPECT_NEAR(cpu.speed[0].gain_share, 0.3, 1e-6);
  run.batch_size = 64;
  EXPECT_TRUE(diagnosis_of(run).healthy());
}

TEST(DiagnosisTest, NamesLaunchesOfTheReferenceEngine) {
  PlantedRun run;
  run.gpu_util = 30.0;
  run.engine = "reference engine, cuda:0, precision bf16-mixed";
  const Diagnosis nest = diagnosis_of(run);
  ASSERT_EQ(first_cause(nest), "engine") << nest.to_text();
  EXPECT_EQ(nest.speed[0].change, "aerie.engine=auto");
  // A family that has no other engine.
  ui::ReportInput input = run.make();
  input.words.one_engine = true;
  const Diagnosis alone = diagnose(read_facts(input));
  ASSERT_EQ(first_cause(alone), "batch_size") << alone.to_text();
  EXPECT_EQ(alone.speed[0].change, "model.train_ds.batch_size=64");
}

TEST(DiagnosisTest, NamesFloat32OnAGpu) {
  PlantedRun run;
  run.precision = "32";
  EXPECT_EQ(first_cause(diagnosis_of(run)), "precision");
  EXPECT_GT(diagnosis_of(run).speed[0].gain_share, 0.8);
  run.engine = "reference engine, cuda:0, precision 32";
  EXPECT_EQ(first_cause(diagnosis_of(run)), "precision");
  EXPECT_LT(diagnosis_of(run).speed[0].gain_share, 0.2);
  run.gpu_util = -1.0;
  run.engine = "reference (cpu)";
  EXPECT_TRUE(diagnosis_of(run).healthy());  // nothing to gain on a CPU
}

TEST(DiagnosisTest, NamesPadding) {
  PlantedRun run;
  run.padding = 0.4;
  const Diagnosis fast = diagnosis_of(run);
  EXPECT_EQ(first_cause(fast), "padding");
  EXPECT_EQ(fast.to_text().find("of what is computed"), std::string::npos) << fast.to_text();
  EXPECT_GT(fast.speed[0].gain_share, 0.1);
  EXPECT_LT(fast.speed[0].gain_share, 0.3 * 0.5);
  run.engine = "reference (cuda:0, bf16-mixed)";
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(first_cause(out), "padding");
  EXPECT_NEAR(out.speed[0].gain_share, 0.3 * 0.99, 1e-6);
}

TEST(DiagnosisTest, NamesValidationEveryTenSteps) {
  PlantedRun run;
  run.validate_every = 10;
  run.validation_s = 1.0;  // as long as the ten steps
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(first_cause(out), "validation") << out.to_text();
  EXPECT_NEAR(out.facts.validation_share, 0.5, 0.03);
  EXPECT_EQ(out.speed[0].change.rfind("trainer.val_check_interval=", 0), 0u);
}

TEST(DiagnosisTest, NamesACheckpointEveryStep) {
  PlantedRun run;
  run.save_every = 1;
  run.blocked_ms = 50.0;
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(first_cause(out), "checkpoints") << out.to_text();
  EXPECT_NEAR(out.facts.save_share, 1.0 / 3.0, 0.02);
}

// Each save blocks little, since most of them give way; the writer takes a core of two all the
// same.
TEST(DiagnosisTest, CountsWhatWritingCheckpointsTakes) {
  PlantedRun run;
  run.gpu_util = -1.0;
  run.engine = "reference (cpu)";
  run.cpus = 2;
  run.save_every = 1;
  run.blocked_ms = 7.0;
  run.written_every = 10;
  run.write_cpu_ms = 800.0;
  const Diagnosis out = diagnosis_of(run);
  ASSERT_EQ(first_cause(out), "checkpoints") << out.to_text();
  EXPECT_NEAR(out.facts.save_share, 0.065, 2e-3);
  EXPECT_NEAR(out.facts.write_cpu_share, 0.8 / 1.07 / 2.0, 0.02);
  EXPECT_NEAR(out.facts.write_share, 0.9 / 1.07, 0.03);
  EXPECT_EQ(out.facts.saves_asked, 200);
  EXPECT_EQ(out.facts.saves_written, 20);
  EXPECT_EQ(out.facts.saves_superseded, 180);
  EXPECT_NEAR(out.speed[0].gain_share, out.facts.save_share + out.facts.write_cpu_share, 0.03);
  EXPECT_NE(out.speed[0].what.find("180 of 200 were never written"), std::string::npos);
  EXPECT_EQ(out.speed[0].change, "exp_manager.checkpoint_callback_params.every_n_train_steps=17");
  EXPECT_NE(out.to_json().find("\"superseded\":180"), std::string::npos);
  // On a GPU the steps do not need that core; what was asked for does not happen all the same.
  run.gpu_util = 99.0;
  run.engine = "fast (cuda:0, bf16-mixed)";
  run.blocked_ms = 1.0;
  Diagnosis gpu = diagnosis_of(run);
  ASSERT_EQ(first_cause(gpu), "checkpoints") << gpu.to_text();
  EXPECT_LT(gpu.speed[0].estimated_speedup(), 1.02);
  EXPECT_FALSE(gpu.healthy());
  // And stays so where a trial shows that it costs nothing.
  gpu.speed[0].measured_speedup = 1.0;
  settle_trials(gpu, 1.02);
  EXPECT_EQ(first_cause(gpu), "checkpoints");
  // Fewer, all of them written: nothing to say.
  run.save_every = run.written_every = 50;
  EXPECT_TRUE(diagnosis_of(run).healthy()) << diagnosis_of(run).to_text();
}

TEST(DiagnosisTest, TrialsOnAGpuLastSeconds) {
  PlantedRun run;  // 190 steps of 100 ms behind the warm-up
  EXPECT_EQ(steps_of_trial(read_facts(run.make()), 200), 200);
  run.step_ms = 4.0;
  EXPECT_NEAR(static_cast<double>(steps_of_trial(read_facts(run.make()), 200)), 2000, 1);  // 8 s
  run.step_ms = 1e-3;
  EXPECT_EQ(steps_of_trial(read_facts(run.make()), 200), 20'000);
  run.gpu_util = -1.0;
  run.engine = "reference (cpu)";
  EXPECT_EQ(steps_of_trial(read_facts(run.make()), 200), 200);
  EXPECT_EQ(steps_of_trial({}, 60), 60);
}

TEST(DiagnosisTest, ForgetsWhatTrialsShowToGainNothing) {
  PlantedRun run;
  run.wait_ms = 60.0;
  run.loader = "0 workers";
  Diagnosis out = diagnosis_of(run);
  out.speed[0].measured_speedup = 1.01;
  settle_trials(out, 1.02);
  EXPECT_TRUE(out.speed.empty());
}

TEST(DiagnosisTest, SharesOfEverythingAreNoTrouble) {
  PlantedRun run;
  run.validate_every = 1;
  run.validation_s = 1e9;
  run.save_every = 1;
  run.blocked_ms = 1e12;
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(out.speed.size(), 2u) << out.to_text();
}

TEST(DiagnosisTest, NamesTheSlowRank) {
  PlantedRun run;
  run.extra_config = "  sync_batchnorm: true\n  devices: 2\n";
  ui::ReportInput input = run.make();
  for (int64_t step = 10; step <= 100; step += 10) {
    Record record(RecordKind::kEvent, step, 0, 0.1 * static_cast<double>(step));
    record.add("event", "ranks").add("slowest_rank", step == 10 ? 0 : 1);
    record.add("slowest_ms", 100.0).add("median_ms", 60.0);
    record.add("why", step == 100 ? "data" : "compute");
    input.records.push_back(record);
  }
  const Diagnosis out = diagnose(read_facts(input));
  ASSERT_EQ(first_cause(out), "straggler") << out.to_text();
  EXPECT_NE(out.speed[0].what.find("rank 1 "), std::string::npos) << out.speed[0].what;
  EXPECT_NEAR(out.speed[0].gain_share, 0.4, 1e-6);
  EXPECT_EQ(out.speed[0].advice.rfind("its computation is slow", 0), 0u) << out.speed[0].advice;
  // On CPUs the others' waiting is no reason for larger batches.
  run.gpu_util = -1.0;
  run.engine = "reference engine, cpu, precision 32";
  run.batch_size = 2;
  run.optimizer_ms = 45.0;
  ui::ReportInput cpu = run.make();
  for (const Record& record : input.records)
    if (record.text("event") == "ranks") cpu.records.push_back(record);
  const Diagnosis waits = diagnose(read_facts(cpu));
  ASSERT_EQ(waits.speed.size(), 1u) << waits.to_text();
  EXPECT_EQ(first_cause(waits), "straggler");
}

TEST(DiagnosisTest, OrdersByWhatIsWorthMost) {
  PlantedRun run;
  run.wait_ms = 20.0;
  run.padding = 0.4;
  run.engine = "reference (cuda:0, bf16-mixed)";
  Diagnosis out = diagnosis_of(run);
  ASSERT_EQ(out.speed.size(), 2u) << out.to_text();
  EXPECT_EQ(out.speed[0].id, "padding");  // 0.3 of 80 ms against 20 of 100
  // A trial showed that it is worth less.
  out.speed[0].measured_speedup = 1.01;
  order_findings(out);
  EXPECT_EQ(out.speed[0].id, "num_workers");
}

TEST(DiagnosisTest, CorrectnessStandsApart) {
  PlantedRun run;
  run.extra_config = "  sync_batchnorm: false\n  devices: 2\n";
  run.nans = 20;
  ui::ReportInput input = run.make();
  input.bad_samples = {{"a.wav", "truncated"}};
  const Diagnosis out = diagnose(read_facts(input));
  std::vector<std::string> ids;
  for (const Finding& finding : out.correctness) ids.push_back(finding.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"skipped_steps", "sync_batchnorm", "dropped_data"}));
  EXPECT_TRUE(out.speed.empty());
  EXPECT_FALSE(out.healthy());
  const std::string text = out.to_text();
  EXPECT_NE(text.find("\nCorrectness\n"), std::string::npos);
  EXPECT_EQ(text.find("\nSpeed"), std::string::npos);
  // A run that learns nothing is not to be made faster.
  EXPECT_NE(text.find("\nChange first: nonfinite/"), std::string::npos) << text;
  run.wait_ms = 50.0;
  run.loader = "0 workers";
  const std::string slow = diagnosis_of(run).to_text();
  EXPECT_NE(slow.find("\nSpeed"), std::string::npos);
  EXPECT_NE(slow.find("bf16-mixed instead of 16-mixed; then its speed\n"), std::string::npos)
      << slow;
  EXPECT_EQ(slow.find("Change first: model."), std::string::npos);
  // One rank has no statistics but its own.
  run = {};
  run.extra_config = "  sync_batchnorm: false\n";
  EXPECT_TRUE(diagnosis_of(run).correctness.empty());
}

TEST(DiagnosisTest, SaysWhetherGainsWereMeasured) {
  PlantedRun run;
  run.wait_ms = 50.0;
  run.loader = "0 workers";
  Diagnosis out = diagnosis_of(run);
  EXPECT_NE(out.to_text().find("estimated from the records"), std::string::npos);
  EXPECT_NE(out.to_json().find("\"measured_speedup\":null"), std::string::npos);
  out.speed[0].measured_speedup = 1.8;
  EXPECT_NE(out.to_text().find("1.80 times as fast, measured"), std::string::npos);
}

TEST(DiagnosisTest, NothingLoggedIsNothingJudged) {
  const Diagnosis out = diagnose(read_facts({}));
  EXPECT_EQ(out.verdict(), "no training step was logged: nothing to judge");
  EXPECT_TRUE(out.speed.empty());
}

// What the run itself recorded of its storage counts more than what is found later.
TEST(DiagnosisTest, BelievesTheRunAboutItsStorage) {
  PlantedRun run;
  run.wait_ms = 60.0;
  Record event = loader_event(0.2, 0.1, 0.05, 0.2, "decode");
  event.add("storage", "network file system (9p)");
  ui::ReportInput input = run.make();
  input.records.push_back(event);
  const Diagnosis out = diagnose(read_facts(input), "solid-state disk");
  EXPECT_EQ(first_cause(out), "slow_storage") << out.to_text();
  EXPECT_NE(out.speed[0].what.find("network file system (9p)"), std::string::npos);
  EXPECT_NE(out.to_json().find("\"storage\":\"network file system (9p)\""), std::string::npos);
}

TEST(DiagnosisTest, KnowsWhatAutomaticWorkersCameTo) {
  PlantedRun run;
  run.wait_ms = 60.0;
  run.loader = "auto, at most 16 workers, ring of 8 batches";
  const Diagnosis before = diagnosis_of(run);
  EXPECT_TRUE(before.facts.auto_workers);
  EXPECT_EQ(before.facts.num_workers, 16);
  // 8 of 16 are at work: `auto` again would change nothing.
  const Diagnosis out = diagnosis_with(run, loader_event(0.05, 0.8, 0.0, 0.5, "decode"));
  EXPECT_EQ(out.facts.num_workers, 8);
  ASSERT_EQ(first_cause(out), "slow_loading") << out.to_text();
  EXPECT_NE(out.speed[0].what.find("8 workers (auto)"), std::string::npos) << out.speed[0].what;
}

// Names of splits are no paths; tar files may be a pattern.
TEST(RunFactsTest, TellsPathsFromNames) {
  PlantedRun run;
  ui::ReportInput input = run.make();
  input.config_yaml = "data: {root: /data/town, split: train, tars: [a.tar, b.tar]}\n";
  input.words.data_settings = {
      {"data.root", "folder"}, {"data.split", "split", true}, {"data.tars", "tar files"}};
  EXPECT_EQ(read_facts(input).data_paths,
            (std::vector<std::string>{"/data/town", "a.tar", "b.tar"}));
}

// What the configuration leaves out has a default.
TEST(DiagnosisTest, DefaultsCountAsWritten) {
  PlantedRun run;
  run.extra_config = "  devices: 2\n";
  EXPECT_EQ(diagnosis_of(run).correctness.at(0).id, "sync_batchnorm");
  run.extra_config =
      "  devices: 2\n  sync_batchnorm: true\n  strategy: "
      "ddp_find_unused_parameters_true\n";
  run.engine = "reference engine, cuda:0, precision 32";
  const auto notes = [&] { return diagnosis_of(run).to_text(); };
  EXPECT_NE(notes().find("find_unused_parameters=true walks"), std::string::npos) << notes();
  EXPECT_NE(notes().find("keeps every gradient twice"), std::string::npos) << notes();
  run.extra_config =
      "  devices: 2\n  sync_batchnorm: true\n  strategy: "
      "{find_unused_parameters: true, static_graph: true}\n";
  EXPECT_EQ(notes().find("find_unused_parameters=true walks"), std::string::npos) << notes();
  run.engine = "fast engine, cuda:0, precision 32";
  EXPECT_EQ(notes().find("keeps every gradient twice"), std::string::npos) << notes();
  // The engine says in what it computes.
  run = {};
  run.engine = "fast engine, cuda:0, precision 32";
  ui::ReportInput input = run.make();
  input.config_yaml = "model: {train_ds: {batch_size: 32}}\n";
  const Diagnosis out = diagnose(read_facts(input));
  EXPECT_EQ(first_cause(out), "precision") << out.to_text();
  EXPECT_TRUE(out.correctness.empty());
  // Copies from pageable memory, as the loader says.
  run.step_ms = 10.0;
  run.wait_ms = 0.1;
  run.optimizer_ms = 1.0;
  run.engine = "fast engine, cuda:0, precision bf16-mixed";
  run.loader = "8 workers, ring of 18 batches of at most 31 MB (pageable), memory at most 1 GB";
  input = run.make();
  input.config_yaml = "model: {train_ds: {batch_size: 32}}\n";
  input.records.push_back(loader_event(0.05, 0.2, 0.7, 0.3, "consumer"));
  EXPECT_EQ(first_cause(diagnose(read_facts(input))), "pin_memory");
}

TEST(DiagnosisTest, AdvisesNoEngineThatWasAskedForAlready) {
  PlantedRun run;
  run.gpu_util = 30.0;
  run.engine = "reference engine, cuda:0, precision bf16-mixed";
  run.extra_config = "aerie:\n  engine: reference\n";
  EXPECT_EQ(first_cause(diagnosis_of(run)), "engine");
  // A GPU that the fast engine has no kernels for.
  run.extra_config = "aerie:\n  engine: auto\n";
  const Diagnosis out = diagnosis_of(run);
  EXPECT_EQ(first_cause(out), "batch_size") << out.to_text();
  EXPECT_NE(out.to_text().find("what keeps this run from the fast one"), std::string::npos);
}

// Virtual GPUs and others whose driver counts nothing: the GPU was used all the same.
TEST(DiagnosisTest, ReadsGpusThatCountNoUtilisation) {
  PlantedRun run;
  run.gpu_util = -1.0;
  const Diagnosis out = diagnosis_of(run);
  EXPECT_TRUE(out.healthy()) << out.to_text();
  EXPECT_EQ(out.to_text().find("none was used"), std::string::npos) << out.to_text();
  EXPECT_NE(out.to_text().find("does not count how busy"), std::string::npos) << out.to_text();
  EXPECT_EQ(out.verdict().find("no GPU"), std::string::npos) << out.verdict();
  // The host's memory is not the GPU's.
  EXPECT_EQ(out.facts.memory_gib(), 0.0);
  // Gaps between kernels show in the steps' device time.
  ui::ReportInput input = run.make();
  for (Record& record : input.records) {
    if (record.kind() != RecordKind::kTrain) continue;
    Record idle(RecordKind::kTrain, record.step(), 0, record.wall_s());
    idle.add("train_loss", 1.0).add("step_ms", 100.0).add("data_wait_ms", 1.0);
    idle.add("padding_share", 0.05).add("samples_per_s", 320.0);
    record = idle.add("forward_backward_ms", 26.0).add("optimizer_ms", 4.0);
  }
  const Diagnosis gaps = diagnose(read_facts(input));
  ASSERT_EQ(first_cause(gaps), "batch_size") << gaps.to_text();
  EXPECT_NE(gaps.speed[0].what.find("30 % busy"), std::string::npos) << gaps.speed[0].what;
}

// fp16 looks for its loss scale at the start of every run.
TEST(DiagnosisTest, ForgivesTheSearchForALossScale) {
  PlantedRun run;
  run.precision = "16-mixed";
  run.nans = 12;
  const Diagnosis out = diagnosis_of(run);
  EXPECT_TRUE(out.healthy()) << out.to_text();
  EXPECT_NE(out.to_text().find("12 of 200 steps overflowed"), std::string::npos) << out.to_text();
  run.nans = 40;
  EXPECT_EQ(diagnosis_of(run).correctness.at(0).id, "skipped_steps");
  run.precision = "bf16-mixed";
  run.nans = 12;
  EXPECT_EQ(diagnosis_of(run).correctness.at(0).id, "skipped_steps");
}

TEST(DiagnosisTest, NamesDataThatIsNoSample) {
  PlantedRun run;
  Record event = loader_event(0.05, 0.2, 0.7, 0.3, "consumer");
  event.add("left_out", 3);
  const Diagnosis out = diagnosis_with(run, event);
  ASSERT_EQ(out.correctness.size(), 1u) << out.to_text();
  EXPECT_EQ(out.correctness[0].id, "dropped_data");
  EXPECT_EQ(out.correctness[0].what.rfind("3 lines of the manifest are no sample", 0), 0u)
      << out.correctness[0].what;
}

TEST(DiagnosisTest, NamesTheLeastBusyGpu) {
  PlantedRun run;
  run.extra_config = "  sync_batchnorm: true\n  devices: 2\n";
  ui::ReportInput input = run.make();
  for (const double util : {40.0, 60.0}) {
    Record record(RecordKind::kEvent, 10, 0, 1.0);
    record.add("event", "ranks").add("slowest_rank", 1).add("slowest_ms", 100.0);
    record.add("median_ms", 99.0).add("why", "compute").add("gpu_util_min", util);
    input.records.push_back(record);
  }
  const std::string text = diagnose(read_facts(input)).to_text();
  EXPECT_NE(text.find("GPU: 50 % busy is the least of the ranks"), std::string::npos) << text;
}

}  // namespace
}  // namespace aerie::advisor
