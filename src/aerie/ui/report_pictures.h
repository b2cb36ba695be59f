// Pictures of a run's validations in its report: <run>/pictures/step_<N>/*.jpg, inside the page.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/ui/run_view.h"

namespace aerie::ui {

// Those of the first and the latest validation, by name; a page stays small enough to be mailed.
// What cannot be read is left out.
std::vector<RunPicture> read_pictures(Env& env, const std::string& run_dir);

// Empty where there are none.
std::string pictures_section(const std::vector<RunPicture>& pictures);

}  // namespace aerie::ui
