#include "aerie/checkpoint/lightning_mirror.h"

#include <gtest/gtest.h>

#include "aerie/archive/torch_file.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie::train {
namespace {

class NoSnapshot final : public StateSnapshot {
 public:
  Status wait() override { return ok_status(); }
  const std::vector<SnapshotTensor>& tensors() const override { return tensors_; }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  std::vector<SnapshotTensor> tensors_;
  std::string scalars_;
};

struct LightningMirrorTest : testing::Test {
  std::unique_ptr<Env> env = new_mem_env();
  NoSnapshot snapshot;
  bool averages = false;

  void SetUp() override { ASSERT_TRUE(env->create_dirs("/run/checkpoints").ok()); }

  Status put(const std::string& path, bool ours) {
    archive::NodeTree tree;
    const archive::NodeId root = tree.add_dict();
    tree.set(root, "state_dict", tree.add_dict(true));
    if (ours) tree.set(root, "aerie", tree.add_string("x"));
    AERIE_ASSIGN_OR_RETURN(const auto writer, archive::TorchWriter::make(tree, root, {}));
    return archive::write_atomically(*env, path,
                                     [&](const archive::Sink& sink) { return writer.write(sink); });
  }
  LightningMirror mirror() {
    return LightningMirror(
        *env, "/run/checkpoints",
        [this](const std::string& path, const TrainState&, const StateSnapshot&) {
          if (averages)
            AERIE_RETURN_IF_ERROR(put(path.substr(0, path.size() - 5) + "-EMA.ckpt", true));
          return put(path, true);
        });
  }
  std::string files() {
    std::string out;
    for (const DirEntry& entry : env->list_dir("/run/checkpoints").value()) out += entry.name + " ";
    return out;
  }
};

TEST_F(LightningMirrorTest, FollowsTheNativeCheckpoints) {
  averages = true;
  LightningMirror files_of_run = mirror();
  ASSERT_TRUE(files_of_run.adopt().ok());
  ASSERT_TRUE(files_of_run.write("a", {}, snapshot).ok());
  ASSERT_TRUE(files_of_run.write_last("a", {}, snapshot).ok());
  ASSERT_TRUE(files_of_run.write("b", {}, snapshot).ok());
  ASSERT_TRUE(files_of_run.write_last("b", {}, snapshot).ok());
  EXPECT_EQ(files(), "a-EMA.ckpt a.ckpt b-EMA.ckpt b-last-EMA.ckpt b-last.ckpt b.ckpt ");
  ASSERT_TRUE(files_of_run.remove("a").ok());
  ASSERT_TRUE(files_of_run.remove("never there").ok());
  EXPECT_EQ(files(), "b-EMA.ckpt b-last-EMA.ckpt b-last.ckpt b.ckpt ");
  // The same after a restart.
  LightningMirror restarted = mirror();
  ASSERT_TRUE(restarted.adopt().ok());
  ASSERT_TRUE(restarted.write_last("c", {}, snapshot).ok());
  ASSERT_TRUE(restarted.remove("b").ok());
  EXPECT_EQ(files(), "c-last-EMA.ckpt c-last.ckpt ");
}

// NeMo refuses a folder with two of them, and its file is not ours to delete.
TEST_F(LightningMirrorTest, MovesNemosOwnLastAside) {
  ASSERT_TRUE(put("/run/checkpoints/theirs-last.ckpt", false).ok());
  ASSERT_TRUE(put("/run/checkpoints/theirs-last-EMA.ckpt", false).ok());
  ASSERT_TRUE(put("/run/checkpoints/theirs.ckpt", false).ok());
  LightningMirror files_of_run = mirror();
  ASSERT_TRUE(files_of_run.adopt().ok());
  ASSERT_TRUE(files_of_run.write_last("ours", {}, snapshot).ok());
  ASSERT_TRUE(files_of_run.remove("theirs").ok());
  EXPECT_EQ(files(),
            "ours-last.ckpt theirs-last-EMA.ckpt.superseded theirs-last.ckpt.superseded "
            "theirs.ckpt ");
}

}  // namespace
}  // namespace aerie::train
