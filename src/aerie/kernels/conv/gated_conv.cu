// Which of the convolution's kernels run (conv_strips.h).
#include "aerie/kernels/conv/gated_conv_backward.h"
#include "aerie/kernels/conv/gated_conv_forward.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

bool covered(const GatedConv& a) {
  return a.covered() && a.left >= 0 && a.left < a.kernel && (a.kernel == 5 || a.kernel == 9);
}

int parts_of(const GatedConv& a, int strip) {
  return a.batch * ceil_div(a.frames, strip * kWarps);
}
LaunchShape shape_of(const GatedConv& a, int strip) {
  return {dim3(unsigned(ceil_div(a.channels, kCols)), unsigned(parts_of(a, strip))),
          dim3(kThreads)};
}
// Long strips overlap less and have less to do before and behind them, but are fewer. What a strip
// takes is counted in instructions.
bool long_strips_pay(const GatedConv& a) {
  const auto cost = [&](int strip) {
    const float waves =
        float(parts_of(a, strip)) * float(ceil_div(a.channels, kCols)) / float(2 * sm_count());
    return (waves > 1.0f ? waves : 1.0f) * float(860 + 106 * strip);
  };
  return cost(kLongStrip) < cost(kShortStrip);
}

// Calls body with the type, the taps and the channels as constants.
template <typename Body>
int with_constants(const GatedConv& a, Body body) {
  using Five = std::integral_constant<int, 5>;
  using Nine = std::integral_constant<int, 9>;
  using Any = std::integral_constant<int, 0>;
  return dispatch(a.dtype, [&](auto zero) {
    if (a.kernel == 5) return body(zero, Five(), Any());
    if constexpr (sizeof(zero) == 2) {
      if (a.channels == 512) return body(zero, Nine(), std::integral_constant<int, 512>());
      if (a.channels == 1024) return body(zero, Nine(), std::integral_constant<int, 1024>());
    }
    return body(zero, Nine(), Any());
  });
}

}  // namespace

int gated_conv(const GatedConv& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return with_constants(a, [&](auto zero, auto taps, auto channels) {
    if constexpr (channels() > 0) {
      if (long_strips_pay(a))
        return launch(stream, shape_of(a, kLongStrip),
                      gated_conv_long_kernel<decltype(zero), taps(), channels()>, a);
    }
    return launch(stream, shape_of(a, kShortStrip),
                  gated_conv_kernel<decltype(zero), taps(), channels()>, a);
  });
}

int gated_conv_backward(const GatedConvBackward& a, void* stream) {
  const GatedConv& f = a.forward;
  if (!covered(f)) return kUnsupported;
  int parts = 0;
  AERIE_TRY(with_constants(f, [&](auto zero, auto taps, auto channels) {
    const auto start = [&](auto strip) {
      parts = parts_of(f, strip());
      return launch(stream, shape_of(f, strip()),
                    gated_conv_backward_kernel<decltype(zero), taps(), channels(), strip()>, a);
    };
    if constexpr (channels() > 0) {
      if (long_strips_pay(f)) return start(std::integral_constant<int, kLongStrip>());
    }
    return start(std::integral_constant<int, kShortStrip>());
  }));
  ColumnSums sums;
  sums.sections = 1;
  sums.parts = parts;
  sums.stride = size_t(f.channels) * (f.kernel + 3);
  sums.accumulate = a.accumulate;
  struct {
    float* out;
    int begin, width;
  } const targets[] = {{a.grad_weight, 0, f.kernel},
                       {a.grad_bias, f.kernel, 1},
                       {a.grad_gate_bias, f.kernel + 1, 2}};
  for (const auto& target : targets) {
    if (target.out == nullptr) continue;
    sums.out[0] = target.out;
    sums.width = f.channels * target.width;
    sums.partial = a.partial + size_t(f.channels) * target.begin;
    AERIE_TRY(finish_column_sums(stream, sums, a.deferred));
  }
  return kOk;
}

}  // namespace aerie::kernels::AERIE_BACKEND
