#include "bench_reference.h"

#include <set>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/step_setup.h"
#include "bench_plan.h"

namespace aerie::tools {
namespace {

config::RunConfig loaded(const std::vector<std::string>& overrides) {
  const TempDir folder;
  config::ConfigArgs args;
  args.files = {folder.file("base.yaml")};
  EXPECT_TRUE(Env::real().write_file(args.files.front(), reference_base_yaml()).ok());
  args.overrides = overrides;
  auto out = config::load_run_config(args);
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  return out.ok() ? std::move(out->run) : config::RunConfig();
}

// `aerie bench step --plan` needs no GPU; a device model is named, or there is one clear error.
TEST(BenchPlanTest, PrintsAPlanWithoutAGpu) {
  config::RunConfig run = loaded({});
  run.trainer.precision = config::Precision::kBf16Mixed;
  const auto plan = plan_case(run, 16, 15.0, "h200");
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  EXPECT_NE(plan->text.find("device model h200: 132 SMs"), std::string::npos) << plan->text;
  EXPECT_NE(plan->text.find("overlap: "), std::string::npos);
  EXPECT_NE(plan->json.find("\"attention_backward\""), std::string::npos) << plan->json;
  EXPECT_NE(plan_case(run, 16, 15.0, "a100")->text.find("not measured"), std::string::npos);
  const auto unknown = plan_case(run, 16, 15.0, "h2000");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().to_string().find("known are h200"), std::string::npos);
  EXPECT_FALSE(plan_case(run, 16, -1.0, "h200").ok());
  run.model.encoder.conv_kernel_size = 31;
  const auto uncovered = plan_case(run, 16, 15.0, "h200");
  ASSERT_FALSE(uncovered.ok());
  EXPECT_NE(uncovered.status().to_string().find("conv_kernel_size"), std::string::npos);
}

TEST(ReferenceTableTest, TheBaseItselfRunsOnTheFastEngine) {
  EXPECT_EQ(train::FastEngine::not_covered(loaded({})), "");
}

TEST(ReferenceTableTest, EveryRowIsAModelThatTheFastEngineDoesNotCover) {
  std::set<std::string> names;
  for (const ReferenceRow& row : reference_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " stands twice";
    const config::RunConfig run = loaded(row.overrides);
    const bool asked = run.aerie.engine == config::Engine::kReference;
    // What the engine itself finds out when it starts.
    const bool amsgrad = run.model.optim.amsgrad;
    EXPECT_TRUE(asked || amsgrad || !train::FastEngine::not_covered(run).empty()) << row.name;
    const auto settings = nest::nest_settings(run.model);
    EXPECT_TRUE(settings.ok()) << row.name << ": " << settings.status().to_string();
  }
}

}  // namespace
}  // namespace aerie::tools
