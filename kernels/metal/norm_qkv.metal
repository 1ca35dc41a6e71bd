// y [M, Nq + Nk + Nv] = rms_norm(x [M, K]) times three quantized weights, side by side.
//
// The norm's weights are applied to x as it is read, and its factor, one a row, to the sums.
// A simdgroup's OUT rows lie in one of the three: their numbers of rows are multiples of OUT.
#include "small_rows.h"
// body
typedef omlx::SmallRows<T, BITS, GROUP, ROWS, OUT, WARPS, true> Matmul;
threadgroup typename Matmul::Memory shared;
const int num_in = x_shape[x_ndim - 1], num_rows = omlx::leading_rows(x_shape, x_ndim);
const int num_q = wq_shape[0], num_k = wk_shape[0], num_v = wv_shape[0];
const int num_out = num_q + num_k + num_v;
const int warp = simdgroup_index_in_threadgroup, lane = thread_index_in_simdgroup;
const int first = (threadgroup_position_in_grid.x * WARPS + warp) * OUT;
const omlx::Weights<T> q = {wq, sq, bq, num_q}, k = {wk, sk, bk, num_k}, v = {wv, sv, bv, num_v};
omlx::Place<T> one = {v, first - num_q - num_k};
if (first < num_q) {
  one.weights = q;
  one.row = first;
} else if (first < num_q + num_k) {
  one.weights = k;
  one.row = first - num_q;
}
const omlx::Place<T> other = {one.weights, one.row + OUT / 2};
Matmul::multiply(x, norm, eps[0], num_rows, num_in, one, other, shared, warp, lane);
for (int i = lane; i < num_rows * OUT; i += 32) {
  const int row = i / OUT, out = first + i % OUT;
  if (out >= num_out) continue;
  const float sum = Matmul::total(shared, warp, i % OUT, row);
  y[size_t(row) * num_out + out] = T(Matmul::factor(shared, warp, row) * sum);
}
