// 1 to 16 rows of activations times weights of 4, 8 or 16 bits, each weight read once for all rows.
//
// ROWS says how many rows there are, or may be: 1 to 4, by sums over lanes, or 8 or 16, by products
// of matrices. A threadgroup has WARPS simdgroups, and each of them OUT weight rows. Columns (K)
// are whole groups of quantization, and whole eights of 16-bit weights.
#pragma once
#include "lanes.h"
#include "tiles.h"

namespace omlx {

template <bool FEW> struct Choice {
  template <typename T, int BITS, int GROUP, int ROWS, int OUT, int WARPS, bool NORM>
  using Way = Lanes<T, BITS, GROUP, ROWS, OUT, WARPS, NORM>;
};

template <> struct Choice<false> {
  template <typename T, int BITS, int GROUP, int ROWS, int OUT, int WARPS, bool NORM>
  using Way = Tiles<T, BITS, GROUP, ROWS, OUT, WARPS, NORM>;
};

template <typename T, int BITS, int GROUP, int ROWS, int OUT, int WARPS, bool NORM>
using SmallRows =
    typename Choice<ROWS <= 4>::template Way<T, BITS, GROUP, ROWS, OUT, WARPS, NORM>;

}  // namespace omlx
