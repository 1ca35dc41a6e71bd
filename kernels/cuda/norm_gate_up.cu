// y [M, N] = silu(g) u, where g and u are rms_norm(x [M, K]) times two quantized weights [N, K].
//
// Tiles alternate between the two, so that a block has both sums of its outputs.
#include "qmm.cuh"
// body
constexpr int ROWS = 16 * TILES;
__shared__ float shared[WARPS * ROWS][8 * MT + 1];
__shared__ float ssq[WARPS][8 * MT];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
const int num_rows = omlx::leading_rows(x_shape, x_ndim), num_in = x_shape[x_ndim - 1];
float total[TILES][MT][4] = {}, squares[MT] = {};
const omlx::Qmm<T, BITS, GROUP, TILES, MT, WARPS, NSUB, VECTOR> matmul{x, norm, num_rows, num_in};
const int num_out = wg_shape[0], first = blockIdx.x * (ROWS / 2);
const omlx::Weights gate = omlx::weights_of(wg, sg, bg, num_out);
const omlx::Weights up = omlx::weights_of(wu, su, bu, num_out);
matmul.accumulate(
    [&](int tile) { return omlx::Place{tile % 2 ? up : gate, first + 16 * (tile / 2)}; }, warp, lane,
    total, squares);
omlx::lay_out<ROWS, MT>(total, lane, shared + warp * ROWS);
omlx::lay_squares<MT>(squares, warp, lane, ssq);
__syncthreads();
for (int i = threadIdx.x; i < num_rows * (ROWS / 2); i += 32 * WARPS) {
  const int row = i / (ROWS / 2), column = i % (ROWS / 2), out = first + column;
  if (out >= num_out) continue;
  const int at = column / 16 * 32 + column % 16;
  const float factor = omlx::inverse_rms<MT, WARPS>(ssq, row, num_in, eps[0]);
  const float g = factor * omlx::over_warps<WARPS>(shared, ROWS, at, row);
  const float u = factor * omlx::over_warps<WARPS>(shared, ROWS, at + 16, row);
  y[size_t(row) * num_out + out] = omlx::Half<T>::rounded(g / (1.0f + __expf(-g)) * u);
}
