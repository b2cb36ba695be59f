// What the engines on a NestCore share.
#pragma once

#include <memory>

#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/engine/nest_core.h"
#include "aerie/train/autograd/autograd_engine.h"

namespace aerie::train {

class CoreEngine : public AutogradEngine {
 public:
  virtual bool is_fast() const { return false; }
  // With the state behind the last step.
  NestCore& core() {
    (void)finish_update();  // a device that fails here fails again at the next step
    return *core_;
  }

  AutogradCore& autograd() const override { return *core_; }

 protected:
  std::unique_ptr<NestCore> core_;
};

}  // namespace aerie::train
