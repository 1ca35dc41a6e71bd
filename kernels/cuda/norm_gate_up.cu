// y [M, N] = silu(g) u, where g and u are rms_norm(x [M, K]) times two quantized weights [N, K].
//
// Tiles alternate between the two, so that a block has both sums of its outputs: TILES WN is even.
#include "qmm.cuh"
// body
constexpr int ROWS = 16 * TILES * WN;
using Matmul = omlx::Qmm<T, BITS, GROUP, TILES, MT, WN, WK, STAGES, VECTOR>;
extern __shared__ __align__(16) char ring[];  // then the sums, as [WK][ROWS][8 MT + 1]
const auto shared = reinterpret_cast<float(*)[8 * MT + 1]>(ring);
__shared__ float ssq[WK][8 * MT];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % WN, share = warp / WN;
const int num_rows = omlx::leading_rows(x_shape, x_ndim), num_in = x_shape[x_ndim - 1];
float total[TILES][MT][4] = {}, squares[MT] = {};
const Matmul matmul{x, norm, num_rows, num_in, ring + warp * (STAGES * Matmul::STAGE)};
const int num_out = wg_shape[0], first = blockIdx.x * (ROWS / 2);
const omlx::Weights gate = omlx::weights_of(wg, sg, bg, num_out);
const omlx::Weights up = omlx::weights_of(wu, su, bu, num_out);
matmul.accumulate(
    [&](int tile) {
      const int at = part * TILES + tile;
      return omlx::Place{at % 2 ? up : gate, first + 16 * (at / 2)};
    },
    share, lane, total, squares);
__syncthreads();
omlx::lay_out<16 * TILES, MT>(total, lane, shared + share * ROWS + part * (16 * TILES));
if (part == 0) omlx::lay_squares<MT>(squares, share, lane, ssq);
__syncthreads();
for (int i = threadIdx.x; i < num_rows * (ROWS / 2); i += 32 * WN * WK) {
  const int row = i / (ROWS / 2), column = i % (ROWS / 2), out = first + column;
  if (out >= num_out) continue;
  const int at = column / 16 * 32 + column % 16;
  const float factor = omlx::inverse_rms<MT, WK>(ssq, row, num_in, eps[0]);
  const float g = factor * omlx::over_warps<WK>(shared, ROWS, at, row);
  const float u = factor * omlx::over_warps<WK>(shared, ROWS, at + 16, row);
  y[size_t(row) * num_out + out] = omlx::Half<T>::rounded(g / (1.0f + __expf(-g)) * u);
}
