#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;

__device__ inline int own_column() {
  return int(blockIdx.x) * kThreads + int(threadIdx.x);
}

__global__ void __launch_bounds__(kThreads) sums_kernel(BatchNormSums a) {
  const int c = own_column();
  if (c >= a.channels) return;
  const int strips = (a.frames + kConvRows - 1) / kConvRows;
  double count = 0.0, sum = 0.0, squares = 0.0;
  for (int item = 0; item < a.batch; ++item) {
    const int limit = statistics_limit(a.counted, item, a.frames);
    for (int strip = 0; strip * kConvRows < limit; ++strip) {
      const int left = limit - strip * kConvRows;
      const double n = left < kConvRows ? left : kConvRows;
      const float* s = a.statistics + size_t(item * strips + strip) * 2 * a.channels + c;
      const double mean = s[0];
      count += n;
      sum += n * mean;
      squares += double(s[a.channels]) + n * mean * mean;
    }
  }
  a.sums[c] = sum;
  a.sums[a.channels + c] = squares;
  if (c == 0) a.sums[2 * a.channels] = a.sums[2 * a.channels + 1] = count;
}

__global__ void __launch_bounds__(kThreads) from_sums_kernel(BatchNormFromSums a) {
  const int c = own_column();
  if (c >= a.channels) return;
  const double all = a.sums[2 * a.channels], count = all > 1.0 ? all : 1.0;
  const double mean = a.sums[c] / count;
  const double off = a.sums[a.channels + c] - mean * a.sums[c], squares = off > 0.0 ? off : 0.0;
  a.mean[c] = float(mean);
  a.variance[c] = float(squares / count);
  const double unbiased = squares / (count > 2.0 ? count - 1.0 : 1.0);
  a.running_mean[c] += float((mean - double(a.running_mean[c])) * double(a.momentum));
  a.running_var[c] += float((unbiased - double(a.running_var[c])) * double(a.momentum));
  if (c != 0) return;
  *a.share = float(a.sums[2 * a.channels + 1] / count);
  *a.batches += 1;
}

__global__ void __launch_bounds__(kThreads) gradient_sums_kernel(BatchNormGradientSums a) {
  const int i = own_column(), columns = 2 * a.channels;
  if (i >= columns) return;
  const int parts = batch_norm_parts(a.rows);
  double sum = 0.0;
  for (int part = 0; part < parts; ++part) sum += double(a.partial[size_t(part) * columns + i]);
  a.sums[i] = sum;
}

__global__ void __launch_bounds__(kThreads) gradient_from_sums_kernel(BatchNormGradientFromSums a) {
  const int i = own_column(), columns = 2 * a.channels;
  if (i >= columns) return;
  const int parts = batch_norm_parts(a.rows);
  a.partial[i] = float(a.sums[i] * double(*a.share));
  for (int part = 1; part < parts; ++part) a.partial[size_t(part) * columns + i] = 0.0f;
}

LaunchShape shape_of(int columns) {
  return {dim3(unsigned(ceil_div(columns, kThreads))), dim3(kThreads)};
}

}  // namespace

int batch_norm_sums(const BatchNormSums& a, void* stream) {
  if (a.batch <= 0 || a.frames <= 0 || a.channels <= 0) return kUnsupported;
  return launch(stream, shape_of(a.channels), sums_kernel, a);
}

int batch_norm_from_sums(const BatchNormFromSums& a, void* stream) {
  if (a.channels <= 0) return kUnsupported;
  return launch(stream, shape_of(a.channels), from_sums_kernel, a);
}

int batch_norm_gradient_sums(const BatchNormGradientSums& a, void* stream) {
  if (a.rows <= 0 || a.channels <= 0) return kUnsupported;
  return launch(stream, shape_of(2 * a.channels), gradient_sums_kernel, a);
}

int batch_norm_gradient_from_sums(const BatchNormGradientFromSums& a, void* stream) {
  if (a.rows <= 0 || a.channels <= 0) return kUnsupported;
  return launch(stream, shape_of(2 * a.channels), gradient_from_sums_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
