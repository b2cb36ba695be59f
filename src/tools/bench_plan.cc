#include "bench_plan.h"

#include <nlohmann/json.hpp>

#include "aerie/device/gpu.h"
#include "aerie/models/nest/run/nest_plan.h"
#include "aerie/models/nest/step/packed_rows.h"
#include "aerie/models/nest/step/step_plan_text.h"

namespace aerie::tools {
namespace {

using nlohmann::ordered_json;

Result<kernels::DeviceModel> model_of(const std::string& name) {
  if (!name.empty()) {
    auto found = kernels::find_device_model(name);
    if (!found.ok()) return found.status().with_context("--device-model");
    return found;
  }
  const auto& gpus = device::driver().gpus;
  if (gpus.empty()) return kernels::DeviceModel{};
  return kernels::device_model_of(gpus[0].name, gpus[0].compute_major, gpus[0].sms,
                                  gpus[0].l2_bytes);
}

}  // namespace

Result<PlannedCase> plan_case(const config::RunConfig& run, int64_t batch, double seconds,
                              const std::string& device_model) {
  AERIE_ASSIGN_OR_RETURN(const kernels::DeviceModel device, model_of(device_model));
  AERIE_ASSIGN_OR_RETURN(const kernels::NestStepConfig c,
                         train::plan_step(run, batch, seconds, device));
  const kernels::StepPlan plan = kernels::effective_plan(c.plan, c.training);
  ordered_json gemms = ordered_json::array();
  for (const kernels::GemmChoice& one : kernels::gemm_choices(c, device))
    gemms.push_back(
        {{"name", one.name}, {"m", one.m}, {"n", one.n}, {"k", one.k}, {"kernel", one.kernel}});
  const ordered_json json = {
      {"device_model",
       {{"name", device.name},
        {"sms", device.sms},
        {"bandwidth", device.bandwidth},
        {"l2_bytes", device.l2_bytes},
        {"measured", device.measured}}},
      {"batch", batch},
      {"seconds", seconds},
      {"rows", kernels::step_rows(c)},
      {"overlap", kernels::overlap_name(plan.overlap)},
      {"overlap_update", plan.overlap_update},
      {"recompute", plan.recompute},
      {"attention_backward", kernels::attention_backward_name(c)},
      {"gemms", gemms},
  };
  return PlannedCase{kernels::plan_text(c, device), json.dump()};
}

}  // namespace aerie::tools
