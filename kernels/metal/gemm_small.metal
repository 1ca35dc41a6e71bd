// y [M, N] = x [M, K] times the transpose of 16-bit weights [N, K].
//
// A threadgroup of 32 WARPS threads has OUT WARPS columns of y.
#include "small_rows.h"
// body
typedef omlx::SmallRows<T, 16, 8, ROWS, OUT, WARPS, false> Matmul;
threadgroup typename Matmul::Memory shared;
const int num_out = w_shape[0], num_in = w_shape[1];
const int num_rows = omlx::leading_rows(x_shape, x_ndim);
const int warp = simdgroup_index_in_threadgroup, lane = thread_index_in_simdgroup;
const int first = (threadgroup_position_in_grid.x * WARPS + warp) * OUT;
const omlx::Weights<T> weights = {(const device uint*)w, w, w, num_out};
const omlx::Place<T> one = {weights, first}, other = {weights, first + OUT / 2};
Matmul::multiply(x, x, 0.0f, num_rows, num_in, one, other, shared, warp, lane);
for (int i = lane; i < num_rows * OUT; i += 32) {
  const int row = i / OUT, out = first + i % OUT;
  if (out < num_out) y[size_t(row) * num_out + out] = T(Matmul::total(shared, warp, i % OUT, row));
}
