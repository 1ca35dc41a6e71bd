// y [M, Nq + Nk + Nv] = rms_norm(x [M, K]) times three quantized weights, side by side.
//
// The norm's weights are applied to x as it is read, and its factor, one a row, to the sums.
// A block's rows lie in one of the three: their numbers of rows are multiples of 16 TILES WN.
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
const int num_q = wq_shape[0], num_k = wk_shape[0], num_v = wv_shape[0];
const int num_out = num_q + num_k + num_v, first = blockIdx.x * ROWS;
const omlx::Place place =
    first < num_q ? omlx::Place{omlx::weights_of(wq, sq, bq, num_q), first}
    : first < num_q + num_k ? omlx::Place{omlx::weights_of(wk, sk, bk, num_k), first - num_q}
                            : omlx::Place{omlx::weights_of(wv, sv, bv, num_v), first - num_q - num_k};
const int begin = place.row + part * (16 * TILES);
matmul.accumulate([&](int tile) { return omlx::Place{place.weights, begin + 16 * tile}; }, share, lane,
                  total, squares);
__syncthreads();
omlx::lay_out<16 * TILES, MT>(total, lane, shared + share * ROWS + part * (16 * TILES));
if (part == 0) omlx::lay_squares<MT>(squares, share, lane, ssq);
__syncthreads();
for (int i = threadIdx.x; i < num_rows * ROWS; i += 32 * WN * WK) {
  const int row = i / ROWS;
  const float factor = omlx::inverse_rms<MT, WK>(ssq, row, num_in, eps[0]);
  const float sum = omlx::over_warps<WK>(shared, ROWS, i % ROWS, row);
  y[size_t(row) * num_out + first + i % ROWS] = omlx::Half<T>::rounded(factor * sum);
}
