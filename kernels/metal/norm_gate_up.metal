// y [M, N] = silu(g) u, where g and u are rms_norm(x [M, K]) times two quantized weights [N, K].
//
// A simdgroup has OUT / 2 rows of each, so that it has both sums of its outputs.
#include "small_rows.h"
// body
typedef omlx::SmallRows<T, BITS, GROUP, ROWS, OUT, WARPS, true> Matmul;
threadgroup typename Matmul::Memory shared;
constexpr int HALF = OUT / 2;
const int num_in = x_shape[x_ndim - 1], num_rows = omlx::leading_rows(x_shape, x_ndim);
const int num_out = wg_shape[0];
const int warp = simdgroup_index_in_threadgroup, lane = thread_index_in_simdgroup;
const int first = (threadgroup_position_in_grid.x * WARPS + warp) * HALF;
const omlx::Weights<T> gates = {wg, sg, bg, num_out}, ups = {wu, su, bu, num_out};
const omlx::Place<T> one = {gates, first}, other = {ups, first};
Matmul::multiply(x, norm, eps[0], num_rows, num_in, one, other, shared, warp, lane);
for (int i = lane; i < num_rows * HALF; i += 32) {
  const int row = i / HALF, out = first + i % HALF;
  if (out >= num_out) continue;
  const float factor = Matmul::factor(shared, warp, row);
  const float g = factor * Matmul::total(shared, warp, i % HALF, row);
  const float u = factor * Matmul::total(shared, warp, HALF + i % HALF, row);
  y[size_t(row) * num_out + out] = T(g / (1.0f + exp(-g)) * u);
}
