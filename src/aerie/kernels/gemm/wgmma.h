// Products of four warps (wgmma) whose second operand has 8 to 32 groups of eight columns. Only for
// sources compiled for sm_90a.
#pragma once

#include "aerie/kernels/gemm/hopper.h"

namespace aerie::kernels::cuda::hopper {

// clang-format off
#define AERIE_NAMES_1 "%0, %1, %2, %3"
#define AERIE_SUMS_1 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define AERIE_NAMES_2 AERIE_NAMES_1 ", %4, %5, %6, %7"
#define AERIE_SUMS_2 AERIE_SUMS_1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define AERIE_NAMES_3 AERIE_NAMES_2 ", %8, %9, %10, %11"
#define AERIE_SUMS_3 AERIE_SUMS_2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define AERIE_NAMES_4 AERIE_NAMES_3 ", %12, %13, %14, %15"
#define AERIE_SUMS_4 AERIE_SUMS_3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define AERIE_NAMES_5 AERIE_NAMES_4 ", %16, %17, %18, %19"
#define AERIE_SUMS_5 AERIE_SUMS_4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define AERIE_NAMES_6 AERIE_NAMES_5 ", %20, %21, %22, %23"
#define AERIE_SUMS_6 AERIE_SUMS_5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define AERIE_NAMES_7 AERIE_NAMES_6 ", %24, %25, %26, %27"
#define AERIE_SUMS_7 AERIE_SUMS_6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define AERIE_NAMES_8 AERIE_NAMES_7 ", %28, %29, %30, %31"
#define AERIE_SUMS_8 AERIE_SUMS_7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define AERIE_NAMES_9 AERIE_NAMES_8 ", %32, %33, %34, %35"
#define AERIE_SUMS_9 AERIE_SUMS_8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define AERIE_NAMES_10 AERIE_NAMES_9 ", %36, %37, %38, %39"
#define AERIE_SUMS_10 AERIE_SUMS_9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define AERIE_NAMES_11 AERIE_NAMES_10 ", %40, %41, %42, %43"
#define AERIE_SUMS_11 AERIE_SUMS_10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define AERIE_NAMES_12 AERIE_NAMES_11 ", %44, %45, %46, %47"
#define AERIE_SUMS_12 AERIE_SUMS_11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define AERIE_NAMES_13 AERIE_NAMES_12 ", %48, %49, %50, %51"
#define AERIE_SUMS_13 AERIE_SUMS_12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define AERIE_NAMES_14 AERIE_NAMES_13 ", %52, %53, %54, %55"
#define AERIE_SUMS_14 AERIE_SUMS_13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define AERIE_NAMES_15 AERIE_NAMES_14 ", %56, %57, %58, %59"
#define AERIE_SUMS_15 AERIE_SUMS_14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define AERIE_NAMES_16 AERIE_NAMES_15 ", %60, %61, %62, %63"
#define AERIE_SUMS_16 AERIE_SUMS_15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define AERIE_NAMES_17 AERIE_NAMES_16 ", %64, %65, %66, %67"
#define AERIE_SUMS_17 AERIE_SUMS_16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define AERIE_NAMES_18 AERIE_NAMES_17 ", %68, %69, %70, %71"
#define AERIE_SUMS_18 AERIE_SUMS_17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define AERIE_NAMES_19 AERIE_NAMES_18 ", %72, %73, %74, %75"
#define AERIE_SUMS_19 AERIE_SUMS_18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define AERIE_NAMES_20 AERIE_NAMES_19 ", %76, %77, %78, %79"
#define AERIE_SUMS_20 AERIE_SUMS_19, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define AERIE_NAMES_21 AERIE_NAMES_20 ", %80, %81, %82, %83"
#define AERIE_SUMS_21 AERIE_SUMS_20, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define AERIE_NAMES_22 AERIE_NAMES_21 ", %84, %85, %86, %87"
#define AERIE_SUMS_22 AERIE_SUMS_21, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define AERIE_NAMES_23 AERIE_NAMES_22 ", %88, %89, %90, %91"
#define AERIE_SUMS_23 AERIE_SUMS_22, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define AERIE_NAMES_24 AERIE_NAMES_23 ", %92, %93, %94, %95"
#define AERIE_SUMS_24 AERIE_SUMS_23, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define AERIE_NAMES_25 AERIE_NAMES_24 ", %96, %97, %98, %99"
#define AERIE_SUMS_25 AERIE_SUMS_24, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define AERIE_NAMES_26 AERIE_NAMES_25 ", %100, %101, %102, %103"
#define AERIE_SUMS_26 AERIE_SUMS_25, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define AERIE_NAMES_27 AERIE_NAMES_26 ", %104, %105, %106, %107"
#define AERIE_SUMS_27 AERIE_SUMS_26, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define AERIE_NAMES_28 AERIE_NAMES_27 ", %108, %109, %110, %111"
#define AERIE_SUMS_28 AERIE_SUMS_27, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define AERIE_NAMES_29 AERIE_NAMES_28 ", %112, %113, %114, %115"
#define AERIE_SUMS_29 AERIE_SUMS_28, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define AERIE_NAMES_30 AERIE_NAMES_29 ", %116, %117, %118, %119"
#define AERIE_SUMS_30 AERIE_SUMS_29, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define AERIE_NAMES_31 AERIE_NAMES_30 ", %120, %121, %122, %123"
#define AERIE_SUMS_31 AERIE_SUMS_30, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define AERIE_NAMES_32 AERIE_NAMES_31 ", %124, %125, %126, %127"
#define AERIE_SUMS_32 AERIE_SUMS_31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define AERIE_WGMMA(groups, columns, type, a_name, b_name, add_name, side_name)                 \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" add_name ", 0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {"               \
      AERIE_NAMES_##groups "}, %" a_name ", %" b_name ", p, 1, 1, %" side_name ", 0;\n}\n"    \
      : AERIE_SUMS_##groups                                                                   \
      : "l"(a), "l"(b), "r"(add), "n"(kSide))
#define AERIE_WGMMA_CASE(groups, columns, a_name, b_name, add_name, side_name)            \
  if constexpr (kGroups == groups && std::is_same_v<T, Bf16>)                             \
    AERIE_WGMMA(groups, columns, "bf16", a_name, b_name, add_name, side_name);            \
  if constexpr (kGroups == groups && std::is_same_v<T, Half>)                             \
    AERIE_WGMMA(groups, columns, "f16", a_name, b_name, add_name, side_name);
// clang-format on

// d = A(64 x 16) B(16 x 8 groups) (+ d where `add`), laid out as of product() (hopper.h). B's
// descriptor is of rows of columns, k along them; A's too unless kSide, when rows are of k.
template <typename T, int kSide, int kSums>
__device__ __forceinline__ void product(float (&d)[kSums], uint64_t a, uint64_t b, int add) {
  constexpr int kGroups = kSums / 4;
  static_assert(kSums % 4 == 0 && kGroups >= 8 && kGroups <= 32);
  AERIE_WGMMA_CASE(8, "64", "32", "33", "34", "35")
  AERIE_WGMMA_CASE(9, "72", "36", "37", "38", "39")
  AERIE_WGMMA_CASE(10, "80", "40", "41", "42", "43")
  AERIE_WGMMA_CASE(11, "88", "44", "45", "46", "47")
  AERIE_WGMMA_CASE(12, "96", "48", "49", "50", "51")
  AERIE_WGMMA_CASE(13, "104", "52", "53", "54", "55")
  AERIE_WGMMA_CASE(14, "112", "56", "57", "58", "59")
  AERIE_WGMMA_CASE(15, "120", "60", "61", "62", "63")
  AERIE_WGMMA_CASE(16, "128", "64", "65", "66", "67")
  AERIE_WGMMA_CASE(17, "136", "68", "69", "70", "71")
  AERIE_WGMMA_CASE(18, "144", "72", "73", "74", "75")
  AERIE_WGMMA_CASE(19, "152", "76", "77", "78", "79")
  AERIE_WGMMA_CASE(20, "160", "80", "81", "82", "83")
  AERIE_WGMMA_CASE(21, "168", "84", "85", "86", "87")
  AERIE_WGMMA_CASE(22, "176", "88", "89", "90", "91")
  AERIE_WGMMA_CASE(23, "184", "92", "93", "94", "95")
  AERIE_WGMMA_CASE(24, "192", "96", "97", "98", "99")
  AERIE_WGMMA_CASE(25, "200", "100", "101", "102", "103")
  AERIE_WGMMA_CASE(26, "208", "104", "105", "106", "107")
  AERIE_WGMMA_CASE(27, "216", "108", "109", "110", "111")
  AERIE_WGMMA_CASE(28, "224", "112", "113", "114", "115")
  AERIE_WGMMA_CASE(29, "232", "116", "117", "118", "119")
  AERIE_WGMMA_CASE(30, "240", "120", "121", "122", "123")
  AERIE_WGMMA_CASE(31, "248", "124", "125", "126", "127")
  AERIE_WGMMA_CASE(32, "256", "128", "129", "130", "131")
}

#undef AERIE_WGMMA
#undef AERIE_WGMMA_CASE
#undef AERIE_NAMES_1
#undef AERIE_SUMS_1
#undef AERIE_NAMES_2
#undef AERIE_SUMS_2
#undef AERIE_NAMES_3
#undef AERIE_SUMS_3
#undef AERIE_NAMES_4
#undef AERIE_SUMS_4
#undef AERIE_NAMES_5
#undef AERIE_SUMS_5
#undef AERIE_NAMES_6
#undef AERIE_SUMS_6
#undef AERIE_NAMES_7
#undef AERIE_SUMS_7
#undef AERIE_NAMES_8
#undef AERIE_SUMS_8
#undef AERIE_NAMES_9
#undef AERIE_SUMS_9
#undef AERIE_NAMES_10
#undef AERIE_SUMS_10
#undef AERIE_NAMES_11
#undef AERIE_SUMS_11
#undef AERIE_NAMES_12
#undef AERIE_SUMS_12
#undef AERIE_NAMES_13
#undef AERIE_SUMS_13
#undef AERIE_NAMES_14
#undef AERIE_SUMS_14
#undef AERIE_NAMES_15
#undef AERIE_SUMS_15
#undef AERIE_NAMES_16
#undef AERIE_SUMS_16
#undef AERIE_NAMES_17
#undef AERIE_SUMS_17
#undef AERIE_NAMES_18
#undef AERIE_SUMS_18
#undef AERIE_NAMES_19
#undef AERIE_SUMS_19
#undef AERIE_NAMES_20
#undef AERIE_SUMS_20
#undef AERIE_NAMES_21
#undef AERIE_SUMS_21
#undef AERIE_NAMES_22
#undef AERIE_SUMS_22
#undef AERIE_NAMES_23
#undef AERIE_SUMS_23
#undef AERIE_NAMES_24
#undef AERIE_SUMS_24
#undef AERIE_NAMES_25
#undef AERIE_SUMS_25
#undef AERIE_NAMES_26
#undef AERIE_SUMS_26
#undef AERIE_NAMES_27
#undef AERIE_SUMS_27
#undef AERIE_NAMES_28
#undef AERIE_SUMS_28
#undef AERIE_NAMES_29
#undef AERIE_SUMS_29
#undef AERIE_NAMES_30
#undef AERIE_SUMS_30
#undef AERIE_NAMES_31
#undef AERIE_SUMS_31
#undef AERIE_NAMES_32
#undef AERIE_SUMS_32

}  // namespace aerie::kernels::cuda::hopper
