// y [M, N] = x [M, K] times the transpose of quantized weights [N, K]; with RESIDUAL, plus r [M, N].
#include "qmm.cuh"
// body
constexpr int ROWS = 16 * TILES * WN;
using Matmul = omlx::Qmm<T, BITS, GROUP, TILES, MT, WN, WK, STAGES, VECTOR>;
extern __shared__ __align__(16) char ring[];  // then the sums, as [WK][ROWS][8 MT + 1]
const auto shared = reinterpret_cast<float(*)[8 * MT + 1]>(ring);
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = warp % WN, share = warp / WN;
const int num_rows = omlx::leading_rows(x_shape, x_ndim), num_in = x_shape[x_ndim - 1];
float total[TILES][MT][4] = {}, squares[MT] = {};
const Matmul matmul{x, nullptr, num_rows, num_in, ring + warp * (STAGES * Matmul::STAGE)};
const int num_out = w_shape[0], first = blockIdx.x * ROWS;
const omlx::Weights weights = omlx::weights_of(w, scales, biases, num_out);
const int begin = first + part * (16 * TILES);
matmul.accumulate([&](int tile) { return omlx::Place{weights, begin + 16 * tile}; }, share, lane, total,
                  squares);
__syncthreads();
omlx::lay_out<16 * TILES, MT>(total, lane, shared + share * ROWS + part * (16 * TILES));
__syncthreads();
for (int i = threadIdx.x; i < num_rows * ROWS; i += 32 * WN * WK) {
  const int row = i / ROWS, out = first + i % ROWS;
  if (out >= num_out) continue;
  const size_t to = size_t(row) * num_out + out;
  float sum = omlx::over_warps<WK>(shared, ROWS, i % ROWS, row);
  // Rounded before it is added, as the sum of two arrays is.
  if (RESIDUAL) sum = omlx::Half<T>::single(omlx::Half<T>::rounded(sum)) + omlx::Half<T>::single(r[to]);
  y[to] = omlx::Half<T>::rounded(sum);
}
