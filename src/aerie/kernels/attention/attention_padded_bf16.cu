#include "aerie/kernels/attention/attention_padded.h"

namespace aerie::kernels::AERIE_BACKEND {

template int padded_forward<Bf16>(const Attention& a, void* stream);
template int padded_backward<Bf16>(const AttentionBackward& b, void* stream);
template int padded_reduce_dr<Bf16>(const AttentionBackward& b, void* stream);

}  // namespace aerie::kernels::AERIE_BACKEND
