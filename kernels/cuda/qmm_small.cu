// y [M, N] = x [M, K] times the transpose of quantized weights [N, K]; with RESIDUAL, plus r [M, N].
#include "qmm.cuh"
// body
constexpr int ROWS = 16 * TILES;
__shared__ float shared[WARPS * ROWS][8 * MT + 1];
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
const int num_rows = omlx::leading_rows(x_shape, x_ndim), num_in = x_shape[x_ndim - 1];
float total[TILES][MT][4] = {}, squares[MT] = {};
const omlx::Qmm<T, BITS, GROUP, TILES, MT, WARPS, NSUB, VECTOR> matmul{x, nullptr, num_rows, num_in};
const int num_out = w_shape[0], first = blockIdx.x * ROWS;
const omlx::Weights weights = omlx::weights_of(w, scales, biases, num_out);
matmul.accumulate([&](int tile) { return omlx::Place{weights, first + 16 * tile}; }, warp, lane, total,
                  squares);
omlx::lay_out<ROWS, MT>(total, lane, shared + warp * ROWS);
__syncthreads();
for (int i = threadIdx.x; i < num_rows * ROWS; i += 32 * WARPS) {
  const int row = i / ROWS, out = first + i % ROWS;
  if (out >= num_out) continue;
  const size_t to = size_t(row) * num_out + out;
  float sum = omlx::over_warps<WARPS>(shared, ROWS, i % ROWS, row);
  // Rounded before it is added, as the sum of two arrays is.
  if (RESIDUAL) sum = omlx::Half<T>::single(omlx::Half<T>::rounded(sum)) + omlx::Half<T>::single(r[to]);
  y[to] = omlx::Half<T>::rounded(sum);
}
