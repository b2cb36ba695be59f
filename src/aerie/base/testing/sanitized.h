// Sanitizers make everything five to twenty times slower. Tests that repeat one thing very often do
// it less often there: what a repetition reads and writes is the same, and the everyday build does
// them all.
#pragma once

namespace aerie {

#if defined(AERIE_SANITIZE_ADDRESS) || defined(AERIE_SANITIZE_THREAD) || \
    defined(AERIE_SANITIZE_UNDEFINED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

}  // namespace aerie
