#include "aerie/kernels/attention/attention_padded.h"

namespace aerie::kernels::AERIE_BACKEND {

template int padded_forward<Half>(const Attention& a, void* stream);
template int padded_backward<Half>(const AttentionBackward& b, void* stream);
template int padded_reduce_dr<Half>(const AttentionBackward& b, void* stream);

}  // namespace aerie::kernels::AERIE_BACKEND
