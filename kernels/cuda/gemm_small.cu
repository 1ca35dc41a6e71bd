// x [M, K] times the transpose of 16-bit weights [N, K], for 1 to 8 MT rows of x.
//
// Each weight is read once for all rows. A block owns 16 TILES rows of weights; its WARPS share K in
// slices of 32 STEPS columns, of which a lane takes 8 neighbours at a time (16 bytes), and add up in
// shared memory at the end.
#include "tensor_core.cuh"

namespace omlx {

template <typename T, int TILES, int MT, int WARPS, int STEPS> struct GemmSmall {
  const T* x;
  const T* w;
  int num_rows, num_out, num_in;

  // Adds this warp's share of the 16 TILES weight rows from `first` on to `total`.
  __device__ void accumulate(int first, int warp, int lane, float (&total)[TILES][MT][4]) const {
    const int q = lane / 4, t = lane % 4;
    const int num_steps = num_in / 32;
    for (int slice = warp * STEPS; slice < num_steps; slice += WARPS * STEPS) {
      Words<4> now[2][STEPS], next[2][STEPS];
      fetch(first, slice, q, t, now);
      uint4 b[STEPS][MT];
#pragma unroll
      for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          const int row = 8 * m + q, step = slice + s;
          b[s][m] = make_uint4(0, 0, 0, 0);
          if (row < num_rows && step < num_steps)
            b[s][m] = *reinterpret_cast<const uint4*>(x + size_t(row) * num_in + step * 32 + t * 8);
        }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        if (tile + 1 < TILES) fetch(first + 16 * (tile + 1), slice, q, t, next);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
          const unsigned* low = now[0][s].w;
          const unsigned* high = now[1][s].w;
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            Half<T>::product(total[tile][m], low[0], high[0], low[1], high[1], b[s][m].x, b[s][m].y);
            Half<T>::product(total[tile][m], low[2], high[2], low[3], high[3], b[s][m].z, b[s][m].w);
          }
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
          now[0][s] = next[0][s];
          now[1][s] = next[1][s];
        }
      }
    }
  }

  __device__ void fetch(int first, int slice, int q, int t, Words<4> (&out)[2][STEPS]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t row = min(first + q + 8 * half, num_out - 1);
#pragma unroll
      for (int s = 0; s < STEPS; ++s) {
        const int step = min(slice + s, num_in / 32 - 1);  // beyond the end x is zero
        const T* from = w + row * num_in + step * 32 + t * 8;
        out[half][s] = stream_words<4>(reinterpret_cast<const unsigned*>(from));
      }
    }
  }
};

}  // namespace omlx
// body
constexpr int ROWS = 16 * TILES;
__shared__ float shared[WARPS * ROWS][8 * MT + 1];
const int num_in = w_shape[1], num_out = w_shape[0];
const int num_rows = omlx::leading_rows(x_shape, x_ndim);
const omlx::GemmSmall<T, TILES, MT, WARPS, STEPS> matmul{x, w, num_rows, num_out, num_in};
const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
float total[TILES][MT][4] = {};
matmul.accumulate(first, warp, lane, total);
omlx::lay_out<ROWS, MT>(total, lane, shared + warp * ROWS);
__syncthreads();
for (int i = threadIdx.x; i < num_rows * ROWS; i += 32 * WARPS) {
  const int row = i / ROWS, out = first + i % ROWS;
  const float sum = omlx::over_warps<WARPS>(shared, ROWS, i % ROWS, row);
  if (out < num_out) y[size_t(row) * num_out + out] = omlx::Half<T>::rounded(sum);
}
