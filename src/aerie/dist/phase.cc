#include "aerie/dist/phase.h"

namespace aerie::dist {

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kStart:
      return "start";
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kAllReduce:
      return "all-reduce";
    case Phase::kUpdate:
      return "update";
    case Phase::kSave:
      return "save";
    case Phase::kValidate:
      return "validate";
    case Phase::kFinish:
      return "finish";
  }
  return "unknown";
}

}  // namespace aerie::dist
