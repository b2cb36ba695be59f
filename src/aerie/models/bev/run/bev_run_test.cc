// A tiny model through the whole engine: trains, validates, saves, goes on, reports.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/test_root.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/run/bev_eval.h"
#include "aerie/models/bev/run/bev_family.h"
#include "aerie/models/bev/run/bev_task.h"

namespace aerie::bev {
namespace {

const models::Families& families() {
  static const models::Families all{{&bev_family()}, {&mm_dialect()}};
  return all;
}

class BevRunTest : public testing::Test {
 protected:
  BevRunTest() {
    const std::string text = str_cat(R"(
name: tiny
trainer:
  accelerator: cpu
  max_steps: 10
  accumulate_grad_batches: 2
  gradient_clip_val: 35
  val_check_interval: 4
  check_val_every_n_epoch: null
  log_every_n_steps: 2
  num_sanity_val_steps: 0
exp_manager:
  resume_if_exists: true
  resume_ignore_no_checkpoint: true
  checkpoint_callback_params: {monitor: mIoU, mode: max}
aerie: {seed: 3, step_unit: micro, pictures: 2}
model:
  profile: seed
  classes: [drivable_area, walkway]
  encoders:
    camera:
      backbone: {embed_dims: 8, depths: [1, 1, 1, 1], num_heads: [1, 2, 2, 4], mlp_ratio: 2}
      neck: {out_channels: 12}
      vtransform: {out_channels: 6, xbound: [-48, 48, 2], ybound: [-48, 48, 2], dbound: [1, 33, 4]}
  decoder: {backbone: {width: 4}}
  train_ds:
    root: )",
                                     root_.path(""), R"(
    cache_dir: )",
                                     dir_.file("cache"), R"(
    batch_size: 2
    num_workers: 0
    image: {size: [32, 88], resize_lim: [0.5, 0.7]}
  validation_ds: {num_workers: 0}
  optim:
    name: adamw
    lr: 2e-3
    sched: {name: step, step: [8]}
)");
    EXPECT_TRUE(Env::real().write_file(dir_.file("tiny.yaml"), text).ok());
  }
  Result<train::RunResult> train(const std::string& name, std::vector<std::string> options = {},
                                 std::vector<std::string> flags = {},
                                 const std::string& file = "tiny.yaml") {
    std::vector<std::string> args = {dir_.file(file), "--work-dir", dir_.file(name)};
    args.insert(args.end(), flags.begin(), flags.end());
    if (!options.empty()) args.push_back("--cfg-options");
    args.insert(args.end(), options.begin(), options.end());
    AERIE_ASSIGN_OR_RETURN(const models::Opened opened,
                           models::open_configuration(families(), args));
    train::RunOptions run;
    run.command = "bev_run_test";
    run.env = &Env::real();
    run.quiet = true;
    return models::train(opened, run);
  }
  std::vector<metrics::Record> records(const train::RunResult& result, metrics::RecordKind kind) {
    std::vector<metrics::Record> out;
    const auto file = metrics::read_metrics(Env::real(), result.run_dir + "/metrics.jsonl");
    if (file.ok())
      for (const metrics::Record& record : file->records)
        if (record.kind() == kind) out.push_back(record);
    return out;
  }
  static std::string weights_of(const train::RunResult& result) {
    const auto bytes =
        Env::real().read_file(result.last_checkpoint + "/model.safetensors", 64 << 20);
    return bytes.ok() ? *bytes : bytes.status().to_string();
  }

  std::vector<int64_t> evaluated(const train::RunResult& result) {
    std::vector<int64_t> out;
    for (const auto& record : records(result, metrics::RecordKind::kVal))
      out.push_back(record.step());
    return out;
  }
  // The values of a checkpoint's weights; counters of BatchNorm among them, as bits.
  static std::vector<float> numbers_of(const train::RunResult& result) {
    const std::string bytes = weights_of(result);
    uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::vector<float> out((bytes.size() - 8 - header) / sizeof(float));
    std::memcpy(out.data(), bytes.data() + 8 + header, out.size() * sizeof(float));
    return out;
  }
  // Names in a folder, those that end so.
  std::vector<std::string> names(const std::string& folder, const std::string& end) const {
    std::vector<std::string> out;
    if (const auto entries = Env::real().list_dir(dir_.file(folder)); entries.ok())
      for (const DirEntry& entry : *entries)
        if (ends_with(entry.name, end)) out.push_back(entry.name);
    return out;
  }
  archive::LightningCheckpoint pth(const std::string& file) const {
    auto out = archive::read_lightning_checkpoint(Env::real(), dir_.file(file));
    EXPECT_TRUE(out.ok()) << out.status().to_string();
    return out.ok() ? std::move(out).value() : archive::LightningCheckpoint();
  }
  // mmcv's rules and files, as its configs ask for them.
  static std::vector<std::string> mm_options() {
    return {"aerie.checkpoints.keep=newest",
            "aerie.checkpoints.save_best=true",
            "exp_manager.resume_if_exists=false",
            "exp_manager.checkpoint_callback_params.save_top_k=2",
            "exp_manager.checkpoint_callback_params.every_n_train_steps=2",
            "exp_manager.checkpoint_callback_params.every_n_epochs=None",
            "exp_manager.checkpoint_callback_params.save_on_train_epoch_end=true"};
  }
  static std::vector<std::string> with(std::vector<std::string> options, std::string more) {
    options.push_back(std::move(more));
    return options;
  }

  nuscenes::TestRoot root_;
  TempDir dir_;
};

using Names = std::vector<std::string>;

TEST_F(BevRunTest, KeepsTheNewestAndTheBestUnderMmcvsNames) {
  const auto result = train("mm", mm_options());
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const Names files = names("mm", ".pth");
  ASSERT_EQ(files.size(), 4u) << join(files, " ");
  EXPECT_TRUE(starts_with(files[0], "best_mIoU_iter_")) << files[0];
  EXPECT_EQ((Names{files[1], files[2], files[3]}),
            (Names{"iter_10.pth", "iter_8.pth", "latest.pth"}));
  const Names native = names("mm/checkpoints", "");
  EXPECT_EQ(native, (Names{file_stem(files[0]), "iter_10", "iter_8"}));

  // What a file holds is what the native checkpoint beside it holds.
  const archive::LightningCheckpoint file = pth("mm/latest.pth");
  const auto at = [&](const char* key) {
    return file.file.tree.find(file.file.tree.find(file.file.root, "meta"), key);
  };
  EXPECT_EQ(file.file.tree.as_int(at("iter")), 10);
  EXPECT_EQ(file.file.tree.items(at("CLASSES")).size(), 2u);
  const auto model = archive::open_weights(Env::real(), dir_.file("mm/checkpoints/iter_10"));
  ASSERT_TRUE(model.ok());
  ASSERT_EQ(file.weights.tensors().size(), model->tensors().size());
  for (const archive::TensorInfo& info : model->tensors()) {
    const archive::TensorInfo* other = file.weights.find(info.name);
    ASSERT_NE(other, nullptr) << info.name;
    EXPECT_EQ(*file.weights.read(*other), *model->read(info)) << info.name;
  }
  ASSERT_EQ(file.optimizers.size(), 1u);
  size_t undecayed = 0;
  for (const archive::ParamGroup& group : file.optimizers[0].groups) {
    EXPECT_EQ(group.params.size(), 1u);  // as paramwise_cfg has it
    EXPECT_DOUBLE_EQ(group.number("initial_lr").value_or(0), 2e-3);
    EXPECT_DOUBLE_EQ(group.number("lr").value_or(0), 2e-4);  // behind the step at 8
    undecayed += group.number("weight_decay") == 0.0;
  }
  EXPECT_EQ(undecayed, 4u);  // a table of every block
  EXPECT_EQ(file.optimizers[0].params.size(), file.optimizers[0].groups.size());
  EXPECT_EQ(file.optimizers[0].params[0].step, 5.0);  // ten micro-batches, two a step
}

TEST_F(BevRunTest, GoesOnFromMmcvsFiles) {
  const auto whole = train("whole", mm_options());
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  ASSERT_TRUE(train("half", with(mm_options(), "trainer.max_steps=6")).ok());
  // Ours: exactly, in another folder and in its own.
  const auto there = train("there", mm_options(), {"--resume-from", dir_.file("half/latest.pth")});
  ASSERT_TRUE(there.ok()) << there.status().to_string();
  EXPECT_EQ(weights_of(*there), weights_of(*whole));
  // A run's folder stands for its newest checkpoint.
  const auto of_run = train("of_run", mm_options(), {"--resume-from", dir_.file("half")});
  ASSERT_TRUE(of_run.ok()) << of_run.status().to_string();
  EXPECT_EQ(weights_of(*of_run), weights_of(*whole));

  // Without the native one beside it: as a file of mmcv's, whose loader starts anew.
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(dir_.file("theirs")).ok());
  ASSERT_TRUE(env.copy_file(dir_.file("half/iter_6.pth"), dir_.file("theirs/iter_6.pth")).ok());
  const auto foreign =
      train("theirs", with(mm_options(), "trainer.max_steps=6"), {"--auto-resume"});
  ASSERT_TRUE(foreign.ok()) << foreign.status().to_string();
  EXPECT_EQ(foreign->step, 6);
  EXPECT_EQ(foreign->stop_reason, "already finished");
  const auto on = train("theirs", mm_options(), {"--auto-resume"});
  ASSERT_TRUE(on.ok()) << on.status().to_string();
  EXPECT_EQ(on->step, 10);
  EXPECT_NE(weights_of(*on), weights_of(*whole));

  // Weights alone, also of a run that this one moves away.
  const auto fresh = train("half", with(with(mm_options(), "trainer.max_steps=2"),
                                        "load_from=" + dir_.file("half/iter_6.pth")));
  ASSERT_TRUE(fresh.ok()) << fresh.status().to_string();
  EXPECT_EQ(names("half", ".pth"), (Names{"iter_2.pth", "latest.pth"}));
}

TEST_F(BevRunTest, FilesThatAreNoCheckpointsAreRefused) {
  Env& env = Env::real();
  const auto refused = [&](const std::string& bytes) {
    EXPECT_TRUE(env.write_file(dir_.file("bad.pth"), bytes).ok());
    std::string out;
    for (const char* flag : {"--resume-from", "--load-from"}) {
      const auto result = train("bad", {}, {flag, dir_.file("bad.pth")});
      EXPECT_FALSE(result.ok()) << flag;
      EXPECT_NE(result.status().to_string().find("bad.pth"), std::string::npos);
      out += result.status().to_string();
    }
    return out;
  };
  // What is not there is the command line's fault, and so is a folder without checkpoints.
  for (const char* flag : {"--resume-from", "--load-from"}) {
    const auto result = train("bad", {}, {flag, dir_.file("none.pth")});
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << result.status().to_string();
    EXPECT_NE(result.status().to_string().find("none.pth"), std::string::npos);
  }
  ASSERT_TRUE(env.create_dirs(dir_.file("empty")).ok());
  const auto empty = train("bad", {}, {"--resume-from", dir_.file("empty")});
  EXPECT_EQ(empty.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(empty.status().to_string().find("holds no checkpoint"), std::string::npos)
      << empty.status().to_string();
  (void)refused("");
  (void)refused("not a pickle at all, but rather long");
  // os.system("...") as a pickle, bare and behind the head of the format from before 1.6.
  const std::string touched = dir_.file("touched"), command = "touch " + touched;
  std::string call(
      "\x80\x02"
      "cos\nsystem\nX");
  for (size_t size = command.size(), byte = 0; byte < 4; ++byte, size >>= 8)
    call += static_cast<char>(size & 0xFF);
  call += command + "\x85R.";
  (void)refused(call);
  const std::string head("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  (void)refused(head + "\x80\x02M\xe9\x03." + "\x80\x02}." + call + "\x80\x02].");
  // Lists in lists in lists.
  (void)refused(head + "\x80\x02M\xe9\x03." + "\x80\x02}." + "\x80\x02" +
                std::string(10 << 20, ']') + ".");
  EXPECT_FALSE(env.exists(touched));

  // A whole file without what resuming needs.
  ASSERT_TRUE(train("w", with(mm_options(), "trainer.max_steps=2")).ok());
  const auto bare = train("bare", with(mm_options(),
                                       "exp_manager.checkpoint_callback_params."
                                       "save_weights_only=true"));
  ASSERT_TRUE(bare.ok()) << bare.status().to_string();
  ASSERT_TRUE(env.copy_file(dir_.file("bare/iter_10.pth"), dir_.file("bare.pth")).ok());
  const auto weights = train("x", {}, {"--resume-from", dir_.file("bare.pth")});
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().to_string().find("load_from"), std::string::npos)
      << weights.status().to_string();
  // Of another model.
  const auto other =
      train("y", {"model.decoder.backbone.width=8"}, {"--resume-from", dir_.file("w/latest.pth")});
  ASSERT_FALSE(other.ok());
  // Named once.
  const auto wide =
      train("z", {"model.decoder.backbone.width=8"}, {"--load-from", dir_.file("w/iter_2.pth")});
  ASSERT_FALSE(wide.ok());
  const std::string said = wide.status().to_string();
  EXPECT_NE(said.find("has the shape"), std::string::npos) << said;
  EXPECT_EQ(said.find("iter_2.pth"), said.rfind("iter_2.pth")) << said;
  EXPECT_NE(said.find("iter_2.pth"), std::string::npos) << said;
}

TEST_F(BevRunTest, CheckpointsOfEpochsAreNamedByThem) {
  const auto result = train(
      "epochs", {"aerie.checkpoints.keep=newest", "trainer.max_epochs=3", "trainer.max_steps=-1",
                 "trainer.val_check_interval=1.0", "trainer.check_val_every_n_epoch=1",
                 "exp_manager.checkpoint_callback_params.save_top_k=-1",
                 "exp_manager.checkpoint_callback_params.every_n_epochs=2",
                 "exp_manager.checkpoint_callback_params.save_on_train_epoch_end=true"});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(names("epochs", ".pth"), (Names{"epoch_2.pth", "epoch_3.pth", "latest.pth"}));
  const archive::LightningCheckpoint file = pth("epochs/epoch_2.pth");
  EXPECT_EQ(file.file.tree.as_int(
                file.file.tree.find(file.file.tree.find(file.file.root, "meta"), "epoch")),
            2);
}

TEST_F(BevRunTest, TrainsValidatesSavesAndReports) {
  const auto result = train("whole");
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->step, 10);
  EXPECT_TRUE(result->healthy) << result->health;
  std::vector<int64_t> steps;
  for (const metrics::Record& record : records(*result, metrics::RecordKind::kVal)) {
    steps.push_back(record.step());
    double mean = -1.0, half = -1.0, drivable = -1.0, walkway = -1.0, loss = 0.0;
    ASSERT_TRUE(record.number("mIoU", &mean) && record.number("mIoU@0.50", &half) &&
                record.number("map/drivable_area/iou@max", &drivable) &&
                record.number("map/walkway/iou@max", &walkway) && record.number("val_loss", &loss));
    EXPECT_NEAR(mean, 0.5 * (drivable + walkway), 1e-9);
    EXPECT_LE(half, mean);
    EXPECT_GT(loss, 0.0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{4, 8}));
  const auto steps_of_training = records(*result, metrics::RecordKind::kTrain);
  ASSERT_FALSE(steps_of_training.empty());
  double value = 0.0;
  for (const char* name : {"loss", "loss/map/walkway/focal", "samples_per_s"})
    EXPECT_TRUE(steps_of_training.back().number(name, &value)) << name;
  EXPECT_NE(result->best_checkpoint.find("mIoU="), std::string::npos) << result->best_checkpoint;
  const auto page = Env::real().read_file(result->report, 8 << 20);
  ASSERT_TRUE(page.ok());
  for (const char* text : {"Intersection over union", "samples per second", "nuScenes folder"})
    EXPECT_NE(page->find(text), std::string::npos) << text;
  EXPECT_EQ(page->find("Padding share"), std::string::npos);

  // Two samples at every validation, the same ones, in the folder and in the page.
  const auto names = [&](const std::string& folder) {
    std::vector<std::string> out;
    if (const auto files = Env::real().list_dir(result->run_dir + "/pictures/" + folder);
        files.ok())
      for (const DirEntry& file : *files) out.push_back(file.name);
    return out;
  };
  EXPECT_EQ(names("step_4").size(), 2u);
  EXPECT_EQ(names("step_4"), names("step_8"));
  size_t shown = 0;
  for (size_t at = 0; (at = page->find("data:image/jpeg;base64,", at)) != std::string::npos; ++at)
    ++shown;
  EXPECT_EQ(shown, 4u);  // of the first and of the latest validation

  // mmcv's logs: every second iteration, the validations among them, and its tags.
  const Names logs = this->names("whole", ".log.json");
  ASSERT_EQ(logs.size(), 1u);
  const auto log = Env::real().read_file(dir_.file("whole/" + logs[0]), 1 << 20);
  ASSERT_TRUE(log.ok());
  for (const char* text :
       {R"({"mode":"train","epoch":1,"iter":2,"lr":0.002,)", R"("loss/map/walkway/focal":)",
        R"({"mode":"train","epoch":3,"iter":10,"lr":0.0002)",
        R"({"mode":"val","epoch":1,"iter":4,)", R"({"mode":"val","epoch":2,"iter":8,)",
        R"("map/drivable_area/iou@0.65":)", R"("verdict":"compute-bound")"})
    EXPECT_NE(log->find(text), std::string::npos) << text << "\n" << *log;
  EXPECT_TRUE(Env::real().exists(dir_.file("whole/" + logs[0].substr(0, logs[0].size() - 5))));
  for (const std::string& name : this->names("whole", ""))
    if (starts_with(name, "events.out")) {
      const auto events = Env::real().read_file(dir_.file("whole/" + name), 8 << 20);
      ASSERT_TRUE(events.ok());
      for (const char* tag : {"train/loss", "train/loss/map/walkway/focal", "train/grad_norm",
                              "learning_rate", "val/mIoU", "val/map/walkway/iou@max"})
        EXPECT_NE(events->find(tag), std::string::npos) << tag;
    }

  // Its checkpoint scores what the last evaluation said, and more can be asked of it.
  {
    config::mm::MmArgs args;
    args.config = dir_.file("tiny.yaml");
    const auto loaded = load_bev_config(Env::real(), args);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    BevEvalOptions options;
    options.config = &loaded->run;
    options.env = &Env::real();
    options.checkpoint = result->best_checkpoint;
    options.show_dir = dir_.file("shown");
    options.show_limit = 3;
    options.baselines = true;
    const auto report = evaluate_bev(options);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    double best = 0.0;
    for (const metrics::Record& record : records(*result, metrics::RecordKind::kVal)) {
      double mean = 0.0;
      if (record.number("mIoU", &mean)) best = std::max(best, mean);
    }
    EXPECT_NEAR(report->scores[0].values[0].second, best, 1e-9);
    ASSERT_EQ(report->scores.size(), 3u);
    EXPECT_EQ(report->scores[1].predictor, "untrained");
    // Every cell of a class that is anywhere is predicted by its mean or not: scores are shares.
    EXPECT_GE(report->scores[2].values[0].second, 0.0);
    EXPECT_LE(report->scores[2].values[0].second, 1.0);
    const auto drawn = Env::real().list_dir(dir_.file("shown"));
    ASSERT_TRUE(drawn.ok());
    EXPECT_EQ(static_cast<int64_t>(drawn->size()), report->pictures);
    EXPECT_LE(report->pictures, 3);
    for (const char* text : {"drivable_area", "mean of the training masks", "0.65"})
      EXPECT_NE(report->to_text().find(text), std::string::npos) << text;
    options.checkpoint = dir_.file("nothing");
    EXPECT_EQ(evaluate_bev(options).status().code(), StatusCode::kInvalidArgument);
    // A folder of mmcv's has latest.pth alone.
    ASSERT_TRUE(Env::real().create_dirs(dir_.file("mmcv")).ok());
    options.checkpoint = dir_.file("mmcv");
    options.baselines = false;
    options.show_dir.clear();
    EXPECT_NE(evaluate_bev(options).status().to_string().find("iter_N.pth"), std::string::npos);
    ASSERT_TRUE(
        Env::real().copy_file(dir_.file("whole/latest.pth"), dir_.file("mmcv/latest.pth")).ok());
    const auto of_mmcv = evaluate_bev(options);
    ASSERT_TRUE(of_mmcv.ok()) << of_mmcv.status().to_string();
    EXPECT_EQ(of_mmcv->checkpoint, dir_.file("mmcv/latest.pth"));
  }

  // And the weights of one run start another.
  const auto next = train("next", {"load_from=" + result->last_checkpoint, "trainer.max_steps=2",
                                   "trainer.limit_val_batches=0"});
  ASSERT_TRUE(next.ok()) << next.status().to_string();
}

TEST_F(BevRunTest, AResumedRunIsTheRunThatWasNotStopped) {
  const auto whole = train("whole");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto half = train("parts", {"trainer.max_steps=6"});
  ASSERT_TRUE(half.ok()) << half.status().to_string();
  EXPECT_NE(weights_of(*half), weights_of(*whole));
  const auto rest = train("parts");
  ASSERT_TRUE(rest.ok()) << rest.status().to_string();
  EXPECT_EQ(rest->step, 10);
  EXPECT_EQ(weights_of(*rest), weights_of(*whole));
}

TEST_F(BevRunTest, ADryRunDoesEverythingOnceAndLeavesNothing) {
  const auto opened = models::open_configuration(
      families(), {dir_.file("tiny.yaml"), "--work-dir", dir_.file("dry")});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  models::DryRunRequest request;
  request.env = &Env::real();
  const auto text = opened->dialect->family().dry_run(*opened->config, request);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  for (const char* part : {"training", "checkpoint", "expected", "for 10 steps", "run folder"})
    EXPECT_NE(text->find(part), std::string::npos) << *text;
  request.json = true;
  const auto json = opened->dialect->family().dry_run(*opened->config, request);
  ASSERT_TRUE(json.ok());
  EXPECT_NE(json->find("\"planned_steps\": 10"), std::string::npos) << *json;
  EXPECT_FALSE(Env::real().exists(dir_.file("dry")));
}

// Windows of three cross the epochs of four; the cut lies inside the second epoch.
TEST_F(BevRunTest, ResumesInsideEpochsThatWindowsCross) {
  const std::vector<std::string> iterations = {"trainer.accumulate_grad_batches=3",
                                               "trainer.max_steps=9", "trainer.precision=32"};
  const std::vector<std::string> epochs = {
      "trainer.accumulate_grad_batches=3",
      "trainer.max_steps=-1",
      "trainer.max_epochs=3",
      "trainer.val_check_interval=1.0",
      "trainer.check_val_every_n_epoch=2",
      "model.optim.sched.step=1",
      "model.optim.sched.by_epoch=true",
      "trainer.precision=32",
  };
  for (const bool by_epochs : {false, true}) {
    const std::vector<std::string>& options = by_epochs ? epochs : iterations;
    const std::string name = by_epochs ? "epochs" : "iterations";
    const auto whole = train(name + "_whole", options);
    ASSERT_TRUE(whole.ok()) << whole.status().to_string();
    EXPECT_EQ(whole->step, by_epochs ? 12 : 9);
    EXPECT_EQ(evaluated(*whole),
              (by_epochs ? std::vector<int64_t>{8} : std::vector<int64_t>{4, 8}));
    std::vector<std::string> first = options;
    first.push_back("trainer.max_steps=6");
    const auto half = train(name, first);
    ASSERT_TRUE(half.ok()) << half.status().to_string();
    EXPECT_EQ(half->step, 6);
    const auto rest = train(name, options);
    ASSERT_TRUE(rest.ok()) << rest.status().to_string();
    EXPECT_EQ(rest->step, whole->step);
    EXPECT_EQ(weights_of(*rest), weights_of(*whole));
    EXPECT_EQ(evaluated(*rest), evaluated(*whole));
  }
}

// 2 x 2 accumulated is 1 x 4, through the whole loop, where samples do not see each other.
TEST_F(BevRunTest, AccumulatedMicroBatchesAreALargerBatch) {
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> options = {
        "model.norm_eval=true",        "model.encoders.camera.backbone.drop_path_rate=0.0",
        "model.optim.name=sgd",        "model.optim.lr=0.05",
        "model.optim.momentum=0.9",    "model.optim.sched=None",
        "trainer.limit_val_batches=0", "exp_manager.checkpoint_callback_params.monitor=loss"};
    options.insert(options.end(), more.begin(), more.end());
    return train(name, options);
  };
  // Eight samples: the last window of 2 x 3 crosses into the second epoch.
  const auto parts = with("parts", {"model.train_ds.batch_size=2",
                                    "trainer.accumulate_grad_batches=2", "trainer.max_steps=6"});
  const auto whole = with("whole", {"model.train_ds.batch_size=4",
                                    "trainer.accumulate_grad_batches=1", "trainer.max_steps=3"});
  const auto none = with("none", {"model.train_ds.batch_size=4", "trainer.max_steps=3",
                                  "trainer.accumulate_grad_batches=1", "model.optim.lr=0"});
  for (const auto* result : {&parts, &whole, &none})
    ASSERT_TRUE(result->ok()) << result->status().to_string();
  const std::vector<float> a = numbers_of(*parts), b = numbers_of(*whole),
                           start = numbers_of(*none);
  ASSERT_TRUE(a.size() == b.size() && a.size() == start.size());
  float moved = 0.0f, apart = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) {
    moved = std::max(moved, std::abs(b[i] - start[i]));
    apart = std::max(apart, std::abs(a[i] - b[i]));
  }
  EXPECT_GT(moved, 1e-3f);
  EXPECT_LT(apart, 1e-4f * moved);
}

TEST_F(BevRunTest, MmStyleFilesRunByEpochs) {
  const std::string text = str_cat(R"(
model = dict(
    profile='seed', classes=['drivable_area', 'walkway'],
    encoders=dict(camera=dict(
        backbone=dict(embed_dims=8, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 4], mlp_ratio=2),
        neck=dict(out_channels=12),
        vtransform=dict(out_channels=6, image_size=[32, 88], xbound=[-48, 48, 2],
                        ybound=[-48, 48, 2], dbound=[1, 33, 4]))),
    decoder=dict(backbone=dict(width=4)))
data = dict(
    samples_per_gpu=2, workers_per_gpu=0,
    train=dict(type='NuScenesDataset', data_root=')",
                                   root_.path(""), R"('),
    val=dict(type='NuScenesDataset', data_root=')",
                                   root_.path(""), R"('))
optimizer = dict(type='AdamW', lr=2e-3, weight_decay=0.01)
optimizer_config = dict(type='GradientCumulativeOptimizerHook', cumulative_iters=3,
                        grad_clip=dict(max_norm=35, norm_type=2))
lr_config = dict(policy='step', step=[1], gamma=0.5)
runner = dict(type='EpochBasedRunner', max_epochs=4)
evaluation = dict(interval=2, start=1, metric='mIoU')
checkpoint_config = dict(interval=1)
log_config = dict(interval=1, hooks=[dict(type='TextLoggerHook')])
workflow = [('train', 1)]
seed = 3
trainer = dict(accelerator='cpu')
)");
  ASSERT_TRUE(Env::real().write_file(dir_.file("epochs.py"), text).ok());
  const auto result = train("mm", {}, {}, "epochs.py");
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->step, 16);
  EXPECT_EQ(evaluated(*result), (std::vector<int64_t>{4, 12}));
  std::vector<std::pair<int64_t, double>> rates;
  for (const auto& record : records(*result, metrics::RecordKind::kTrain)) {
    double rate = 0.0;
    EXPECT_TRUE(record.number("learning_rate", &rate));
    rates.emplace_back(record.step(), rate);
  }
  // Updates at multiples of three and at the end, with the rate of their last iteration's epoch.
  EXPECT_EQ(rates, (std::vector<std::pair<int64_t, double>>{
                       {3, 2e-3}, {6, 1e-3}, {9, 1e-3}, {12, 1e-3}, {15, 1e-3}, {16, 1e-3}}));
}

TEST_F(BevRunTest, OutOfMemoryNamesWhatHelps) {
  const train::TaskInfo task = bev_task({{"drivable_area"}, false});
  for (const std::string& text : {task.smaller_batch, task.smaller_sample})
    for (const char* word : {"batch", "workers", "fp16", "accumulation"})
      EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
}

TEST_F(BevRunTest, MistakesAreNamed) {
  const auto key = train("a", {"model.optim.lrr=1"});
  ASSERT_FALSE(key.ok());
  EXPECT_NE(key.status().to_string().find("lrr"), std::string::npos) << key.status().to_string();
  const auto root = train("b", {"model.train_ds.root=/nowhere/at/all"});
  ASSERT_FALSE(root.ok());
  EXPECT_NE(root.status().to_string().find("/nowhere/at/all"), std::string::npos);
  const auto weights = train("c", {"load_from=/nowhere/weights.pth"});
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().to_string().find("/nowhere/weights.pth"), std::string::npos)
      << weights.status().to_string();
  const auto fast = train("d", {"aerie.engine=fast"});
  EXPECT_FALSE(fast.ok());
  const auto idle = train("e", {"model.optim=None"});
  ASSERT_FALSE(idle.ok());
  EXPECT_NE(idle.status().to_string().find("nothing would be trained"), std::string::npos)
      << idle.status().to_string();
}

}  // namespace
}  // namespace aerie::bev
