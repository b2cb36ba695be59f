// Forward and backward of one NEST micro-batch as a fixed sequence of kernels over raw memory: from
// waveforms to the loss and every parameter's gradient. The same sequence runs on any KernelTable,
// so that it is checked on the CPU with the reference kernels and may be captured as a CUDA graph.
//
// Covered: rel_pos attention, dw_striding by 8, batch_norm, masking before the subsampling, no
// dropout of positions; every shape is fixed at construction except the lengths, which are device
// values.
//
// Weights that lie well in memory are multiplied at once: q, k and v when their weights are
// adjacent (and their biases, if any), and the positional GEMMs of all layers when these lie at a
// constant distance from each other. Other layouts take more GEMMs, with the same results.
//
// All activations come from one block of memory whose size is known beforehand. Nothing is owned
// here; nothing allocates, waits or looks at device memory. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "aerie/kernels/kernel_table.h"
#include "aerie/kernels/side_stream.h"
#include "aerie/models/nest/step/step_plan.h"

namespace aerie::kernels {

// A parameter: float32 master, the compute weights that GEMMs read (the master itself in float32),
// and where its gradient goes. Null where a model has no such bias.
struct NestParam {
  const float* value = nullptr;
  const void* compute = nullptr;
  float* grad = nullptr;
};

struct NestLayerParams {
  struct Norm {
    NestParam weight, bias;
  };
  struct Linear {
    NestParam weight, bias;
  };
  struct FeedForward {
    Linear first, second;
  };
  Norm norm_feed_forward1, norm_self_att, norm_conv, norm_feed_forward2, norm_out;
  FeedForward feed_forward1, feed_forward2;
  Linear q, k, v, out, pos;
  NestParam bias_u, bias_v;
  Linear pointwise1, depthwise, pointwise2;
  Norm batch_norm;
  float* running_mean = nullptr;
  float* running_var = nullptr;
  int64_t* num_batches = nullptr;
};

struct NestStepParams {
  // pre_encode.conv.{0,2,3,5,6} and out.
  NestLayerParams::Linear conv0, conv2, conv3, conv5, conv6, pre_encode_out;
  std::vector<NestLayerParams> layers;
  NestLayerParams::Linear decoder;
  // Frozen.
  const float* projection = nullptr;
  const double* codebooks = nullptr;
  const float* codebooks_float = nullptr;
  const int32_t* silent_tokens = nullptr;  // (books); may be null
  const float* mask_embedding = nullptr;
  const float* window = nullptr;
  const float* filterbank = nullptr;
  const int32_t* bands = nullptr;
  const float* twiddles = nullptr;
  const void* positions = nullptr;  // (2T-1,d), of the compute dtype
};

struct NestStepConfig {
  Dtype dtype = Dtype::kF32;
  bool tf32 = false;
  bool training = true;  // dropout, dither and batch statistics; otherwise no gradients either
  int batch = 0;         // items
  int rows = 0;     // of the encoder's activations (NestStepInputs::layout); 0: batch * frames/8
  int samples = 0;  // of a padded row of audio
  int frames = 0;   // of the padded features: a multiple of 8
  int bins = 80, sub_channels = 256;
  int width = 512, heads = 8, feed_forward = 2048, layers = 17;
  int conv_kernel = 9, conv_left = 4;
  int classes = 8192, books = 1, code_dim = 16, code_classes = 8192;
  double dropout = 0.1, dropout_pre_encoder = 0.1, dropout_att = 0.1;
  bool xscaling = true;
  int left = -1, right = -1, chunk = 0, left_chunks = 0;  // attention context
  int chosen = 0;  // room for frames in the loss; 0: for all rows
  bool statistics_of_valid_frames = false;
  float dither = 1e-5f, preemphasis = 0.97f;
  int hop = 160, window_length = 400;
  float log_guard = 5.9604645e-08f, pad_value = 0.0f;
  bool clamp_guard = false;
  BlockMask masking;  // the rule; pointers and sizes are filled in
  bool nan_when_empty = false;
  float loss_weight = 1.0f;  // 1/accumulate
  bool accumulate = false;   // adds to the gradients that are there
  bool tune = false;         // GEMMs: Gemm::tune; other processes may then choose others
  StepPlan plan;             // make_step_plan()
  // BatchNorm's statistics and the sums of its gradients go through NestStepInputs::exchange, and
  // what comes back is used instead.
  bool exchange = false;
};

// The step reads trainable parameters part by part: the front end and every layer's positional
// weights, then layer after layer, then the decoder. Part of `layer` is also the first norm of the
// layer behind it. Gradients are written in the opposite order.
constexpr int nest_num_parts(int layers) {
  return layers + 2;
}
constexpr int nest_layer_part(int layer) {
  return layer + 1;
}

// Device memory of one micro-batch.
struct NestStepInputs {
  const float* audio = nullptr;             // (2B,N): clean rows, then noisy ones
  const int32_t* samples = nullptr;         // (2B) valid samples
  const int32_t* frames = nullptr;          // (2B) valid feature frames
  const int32_t* frames_quarter = nullptr;  // (B) of the noisy rows behind two strides
  const int32_t* frames_encoder = nullptr;  // (B) behind three
  // Where the encoder's frames lie; without `cu_seqlens`: items of frames/8 rows each. An item
  // needs encoder_rows() (packed_rows.h) of its valid frames at least.
  RowLayout layout;
  const int32_t* frames_counted = nullptr;  // scalar: encoder frames in BatchNorm's statistics
  const RandomState* random = nullptr;
  const float* loss_scale = nullptr;  // scalar; null: 1
  // Scalar: masked encoder frames of the whole batch, where this is a part of it; null: it is not.
  const int32_t* loss_rows = nullptr;
  // Called before work is launched that reads parameters of a part, in the order of parts; returns
  // 0 or an error. Empty: all parameters may be read.
  std::function<int(int part)> before_part;
  // Called in training before the first work of the backward pass is launched; returns 0 or an
  // error. May be empty.
  std::function<int()> before_backward;
  // Called in training as soon as all work is launched that writes gradients of a part, from the
  // last part to the first: what is launched on `stream` from then on finds them. Returns 0 or an
  // error. May be empty.
  std::function<int(int part, void* stream)> after_part;
  // With NestStepConfig::exchange and in training: called for every layer forward, and from the
  // last to the first backward. Empty: the batch's own sums are used.
  ExchangeSums exchange;
  // A side stream, for work that the encoder does not wait for; without begin there is none.
  SideWork side;
};

struct NestStepOutputs {
  float* loss = nullptr;           // scalar
  int32_t* masked_rows = nullptr;  // scalar: encoder frames in the loss; those without room count
  // max_square_partials() of NestStep: sum-of-squares partials of the gradients that
  // NestStep::squared() names; null: not wanted.
  double* square_partials = nullptr;
};

class NestStep {
 public:
  NestStep(const KernelTable& kernels, const NestStepConfig& config, const NestStepParams& params);

  size_t memory_bytes() const { return memory_bytes_; }
  // Where in that memory the rows of audio may lie: it is used for other things only after them.
  size_t audio_offset() const { return audio_offset_; }
  // Launches the micro-batch. `memory`: memory_bytes() of device memory, 256-byte aligned. Returns
  // the first error of a kernel.
  int run(void* memory, const NestStepInputs& inputs, const NestStepOutputs& outputs, void* stream);

  // Room for sum-of-squares partials that come with gradients. After run(): how many there are, and
  // of which gradients (where these begin, and how many values); none where kernels make none.
  size_t max_square_partials() const { return max_square_partials_; }
  size_t num_square_partials() const { return num_square_partials_; }
  const std::vector<std::pair<const float*, size_t>>& squared() const { return squared_; }

  // For tests: where intermediate results lie, valid after run().
  const float* features() const { return features_; }    // (2B,T,bins)
  const int32_t* tokens() const { return tokens_; }      // (chosen frames,books)
  const uint8_t* selected() const { return selected_; }  // (B,T/8)
  const void* encoded() const { return encoded_; }       // (rows,d), compute dtype

 private:
  // Weights that lie so that one GEMM serves several.
  struct Joined {
    bool qkv = false;          // weights and biases, of every layer
    bool qkv_weights = false;  // weights at least
    int64_t pos_step = 0;  // elements from a layer's positional weight to the next's; 0: no pattern
  };
  static Joined find_joined(const NestStepConfig& config, const NestStepParams& params);
  struct Workspace;  // the bump allocator and what all layers share
  const NestLayerParams& layer_params(int index) const {
    return params_.layers[static_cast<size_t>(index)];
  }
  int execute(Workspace& w, const NestStepInputs& inputs, const NestStepOutputs& outputs);
  int front(Workspace& w);
  int tokens(Workspace& w);
  int layer_forward(Workspace& w, int index);
  int head(Workspace& w);
  int layer_backward(Workspace& w, int index);
  int front_backward(Workspace& w);
  int feed_forward(Workspace& w, const NestLayerParams::FeedForward& p, const void* in,
                   void* hidden, void* activated, uint8_t* keep, uint32_t site,
                   const L2Prefetch& next);
  int position_gemms(Workspace& w);
  int position_gradients(Workspace& w);
  int project(Workspace& w, int index);
  int project_backward(Workspace& w, int index);
  int project_biases(Workspace& w, int index);
  void project_weights(Workspace& w, int index);
  int normalize_conv(Workspace& w, int index);
  int normalize_conv_backward(Workspace& w, int index);
  int exchange_statistics(Workspace& w, int index);
  int exchange_gradient_sums(Workspace& w, int index);
  int feed_forward_backward(Workspace& w, const NestLayerParams::FeedForward& p, const void* hidden,
                            void* activated, uint8_t* keep, uint32_t site,
                            std::initializer_list<L2Prefetch> next);

  const KernelTable* kernels_;
  NestStepConfig config_;
  NestStepParams params_;
  Joined joined_;
  size_t memory_bytes_ = 0;
  size_t audio_offset_ = 0;
  size_t max_square_partials_ = 0, num_square_partials_ = 0;
  std::vector<std::pair<const float*, size_t>> squared_;
  const float* features_ = nullptr;
  const int32_t* tokens_ = nullptr;
  const uint8_t* selected_ = nullptr;
  const void* encoded_ = nullptr;
};

}  // namespace aerie::kernels
