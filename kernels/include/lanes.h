// 1 to 4 rows of activations [ROWS, K] times weights [N, K], by sums over the lanes of a simdgroup.
//
// A lane takes 16 bytes of each of the simdgroup's OUT weight rows at a time and the columns of x
// that belong to them, so that a weight is read once and nothing but the sums goes through
// threadgroup memory. Integers are used as halves that are 2^BITS too large, with
//   sum of x (s q + b) = s (sum of x (q + 2^BITS)) + (b - 2^BITS s) (sum of x)
// for a lane's columns, which lie in one quantization group.
#pragma once
#include "numbers.h"

namespace omlx {

template <typename T, int BITS, int GROUP, int ROWS, int OUT, int WARPS, bool NORM> struct Lanes {
  struct Memory {
    float totals[WARPS][OUT * ROWS];
    float factors[WARPS][ROWS];
  };

  // Products of the simdgroup's rows to shared.totals, and 1 / rms of x's rows to shared.factors.
  static void multiply(const device T* x, const device T* norm, float eps, int, int num_in,
                       Place<T> one, Place<T> other, threadgroup Memory& shared, int warp,
                       int lane) {
    constexpr int columns = 128 / BITS;
    float totals[OUT][ROWS] = {}, squares[ROWS] = {};
    for (int column = lane * columns; column < num_in; column += 32 * columns) {
      uint4 words[OUT];
#pragma unroll
      for (int r = 0; r < OUT; ++r) {
        const Row<T> row = row_of(one, other, r, OUT / 2);
        const device uint* from = row.weights.words + (row.at * num_in + column) / (32 / BITS);
        words[r] = *(const device uint4*)from;
      }
      float dots[OUT][ROWS] = {}, sums[ROWS] = {};
#pragma unroll
      for (int chunk = 0; chunk < columns / 8; ++chunk) {
        float v[ROWS][8];
        load_rows(x, norm, num_in, column + 8 * chunk, v, squares);
#pragma unroll
        for (int m = 0; m < ROWS; ++m)
#pragma unroll
          for (int j = 0; j < 8; ++j) sums[m] += v[m][j];
#pragma unroll
        for (int r = 0; r < OUT; ++r) add_dots(words[r], chunk, v, dots[r]);
      }
#pragma unroll
      for (int r = 0; r < OUT; ++r)
        add_scaled(one, other, r, column, num_in, dots[r], sums, totals[r]);
    }
    lay(totals, squares, eps, num_in, shared, warp, lane);
  }

  // Eight columns of all rows of x, times the norm's weights; their squares are added to `squares`.
  static void load_rows(const device T* x, const device T* norm, int num_in, int column,
                        thread float (&v)[ROWS][8], thread float (&squares)[ROWS]) {
    float weights[8];
    if (NORM) load_eight(norm + column, weights);
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
      load_eight(x + size_t(m) * num_in + column, v[m]);
      if (NORM)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          squares[m] += v[m][j] * v[m][j];
          v[m][j] *= weights[j];
        }
    }
  }

  // The products of eight columns of one weight row.
  static void add_dots(uint4 words, int chunk, thread const float (&v)[ROWS][8],
                       thread float (&dots)[ROWS]) {
    constexpr int pairs = BITS == 16 ? 1 : 16 / BITS;  // of a word
#pragma unroll
    for (int word = 0; word < BITS / 4; ++word)
#pragma unroll
      for (int idx = 0; idx < pairs; ++idx) {
        const uint bits = words[chunk * (BITS / 4) + word];
        const uint both = BITS == 16 ? bits : half_pair<BITS>(bits, idx);
        const float p = BITS == 16 ? low<T>(both) : low<half>(both);
        const float q = BITS == 16 ? high<T>(both) : high<half>(both);
        const int at = 2 * pairs * word + idx;
#pragma unroll
        for (int m = 0; m < ROWS; ++m) dots[m] += v[m][at] * p + v[m][at + pairs] * q;
      }
  }

  static void add_scaled(Place<T> one, Place<T> other, int r, int column, int num_in,
                         thread const float (&dots)[ROWS], thread const float (&sums)[ROWS],
                         thread float (&totals)[ROWS]) {
    float scale = 1, bias = 0;
    if (BITS != 16) {
      const Row<T> row = row_of(one, other, r, OUT / 2);
      const size_t group = (row.at * num_in + column) / GROUP;
      scale = float(row.weights.scales[group]);
      bias = float(row.weights.biases[group]) - half_offset<BITS>() * scale;
    }
#pragma unroll
    for (int m = 0; m < ROWS; ++m) totals[m] += scale * dots[m] + bias * sums[m];
  }

  // The sums over all lanes to shared memory, where the simdgroup's lanes may read them at once.
  static void lay(thread const float (&totals)[OUT][ROWS], thread const float (&squares)[ROWS],
                  float eps, int num_in, threadgroup Memory& shared, int warp, int lane) {
    static_assert(OUT * ROWS <= 32, "a lane keeps at most one of the simdgroup's sums");
#pragma unroll
    for (int r = 0; r < OUT; ++r)
#pragma unroll
      for (int m = 0; m < ROWS; ++m) {
        const float sum = simd_sum(totals[r][m]);
        if (lane == r * ROWS + m) shared.totals[warp][lane] = sum;
      }
    if (NORM)
#pragma unroll
      for (int m = 0; m < ROWS; ++m) {
        const float sum = simd_sum(squares[m]);
        if (lane == m) shared.factors[warp][m] = precise::rsqrt(sum / num_in + eps);
      }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  static float total(threadgroup const Memory& shared, int warp, int idx, int row) {
    return shared.totals[warp][idx * ROWS + row];
  }

  static float factor(threadgroup const Memory& shared, int warp, int row) {
    return shared.factors[warp][row];
  }
};

}  // namespace omlx
