// Marks a loop to be compiled for several instruction sets, the best one chosen at start-up. Such
// loops must not depend on the order of floating-point sums. Off under sanitizers, whose start-up
// comes after the choice.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define AERIE_SIMD_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AERIE_SIMD_CLONES
#endif
