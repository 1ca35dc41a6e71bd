// 5 to 16 rows of activations [M, K] times weights [N, K], by products of 8 by 8 matrices.
//
// A simdgroup has OUT weight rows and passes 8 of them at a time through threadgroup memory, STEP
// columns long; the activations of a step are laid out by all simdgroups, with zeros for rows and
// columns beyond the end, in one of two places by turns, so that a step needs one barrier. Integers
// stay integers: a run of RUN columns lies in one quantization group, and its products P become
// diag(s) P + b (sum of x), both by products of matrices too, since which lane has which number of
// a matrix is not said. Columns lie in the order in which integers leave their words.
#pragma once
#include "numbers.h"

namespace omlx {

template <typename T, int BITS, int GROUP, int ROWS, int OUT, int WARPS, bool NORM> struct Tiles {
  static_assert(ROWS == 8 || ROWS == 16, "rows come in eights");
  static_assert(OUT == 8 || OUT == 16, "weight rows come in eights");
  // Of 16 bytes of a lane in a step.
  static constant constexpr const int LOADS = BITS == 16 ? 2 : 1;
  static constant constexpr const int STEP = 512 * LOADS / BITS;
  static constant constexpr const int RUN = BITS == 16 || GROUP > STEP ? STEP : GROUP;
  static constant constexpr const int RUNS = STEP / RUN;
  static constant constexpr const int CHUNKS = STEP / 8;  // of 16 bytes of x in a row
  static constant constexpr const int STRIDE = STEP + 8;  // of rows in threadgroup memory
  static constant constexpr const int TURNS = (ROWS * CHUNKS + 32 * WARPS - 1) / (32 * WARPS);
  static constant constexpr const int MT = ROWS / 8;
  static constant constexpr const int NT = OUT / 8;
  static_assert(4 * OUT * ROWS <= 16 * STRIDE, "totals take the place of 8 weight rows");

  struct Memory {
    uint4 x[2][ROWS][CHUNKS + 1];
    uint4 w[WARPS][8][CHUNKS + 1];  // at the end the simdgroup's totals
    float sums[2][8][ROWS];         // of each run's columns of x; runs beyond RUNS are zero
    float scales[WARPS][RUNS][8][8];
    float biases[WARPS][8][8];      // by weight row and run
    float factors[ROWS];
  };

  // What a lane has of 8 weight rows in a step: row lane / 4, quarter lane % 4 of its columns.
  struct Part {
    uint4 words[LOADS];
    float scale;  // of run lane % 4
    float bias;
  };

  typedef simdgroup_matrix<float, 8, 8> Sums;
  typedef simdgroup_matrix<T, 8, 8> Operand;

  static void multiply(const device T* x, const device T* norm, float eps, int num_rows, int num_in,
                       Place<T> one, Place<T> other, threadgroup Memory& shared, int warp,
                       int lane) {
    Sums totals[NT][MT];
    Part parts[NT];
    float squares[TURNS] = {};
#pragma unroll
    for (int t = 0; t < NT; ++t) {
      parts[t] = fetch(one, other, t, 0, num_in, lane);
#pragma unroll
      for (int m = 0; m < MT; ++m) totals[t][m] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    }
    clear(shared, warp, lane);
    for (int step = 0; step * STEP < num_in; ++step) {
      lay_x(x, norm, num_rows, num_in, step, shared, warp, lane, squares);
#pragma unroll
      for (int t = 0; t < NT; ++t) {
        lay_weights(parts[t], shared, warp, lane);
        parts[t] = fetch(one, other, t, step + 1, num_in, lane);
        if (t == 0)
          threadgroup_barrier(mem_flags::mem_threadgroup);
        else
          simdgroup_barrier(mem_flags::mem_threadgroup);
        add_products(shared, step % 2, warp, totals[t]);
        simdgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
    lay_factors(squares, eps, num_in, shared, warp, lane);
    threadgroup float* to = (threadgroup float*)&shared.w[warp][0][0];
#pragma unroll
    for (int t = 0; t < NT; ++t)
#pragma unroll
      for (int m = 0; m < MT; ++m) simdgroup_store(totals[t][m], to + 8 * t * ROWS + 8 * m, ROWS);
    if (NORM)
      threadgroup_barrier(mem_flags::mem_threadgroup);
    else
      simdgroup_barrier(mem_flags::mem_threadgroup);
  }

  // Beyond the last column the last ones are read; x is zero there.
  static Part fetch(Place<T> one, Place<T> other, int t, int step, int num_in, int lane) {
    constexpr int columns = STEP / 4;
    const Row<T> row = row_of(one, other, 8 * t + lane / 4, OUT / 2);
    Part part;
#pragma unroll
    for (int load = 0; load < LOADS; ++load) {
      const int column = step * STEP + lane % 4 * columns + load * (128 / BITS);
      const size_t at = row.at * num_in + min(column, num_in - 128 / BITS);
      part.words[load] = *(const device uint4*)(row.weights.words + at / (32 / BITS));
    }
    if (BITS != 16) {
      const int column = step * STEP + min(lane % 4, RUNS - 1) * RUN;
      const size_t group = (row.at * num_in + min(column, num_in - 1)) / GROUP;
      part.scale = float(row.weights.scales[group]);
      part.bias = float(row.weights.biases[group]) - Integers<T, BITS>::offset() * part.scale;
    }
    return part;
  }

  // What stays zero for all steps; no other thread writes there.
  static void clear(threadgroup Memory& shared, int warp, int lane) {
    if (BITS == 16) return;
    for (int i = lane; i < 64; i += 32) {
      const int row = i / 8, column = i % 8;
#pragma unroll
      for (int run = 0; run < RUNS; ++run)
        if (row != column) shared.scales[warp][run][row][column] = 0;
      if (column >= RUNS) shared.biases[warp][row][column] = 0;
    }
    for (int i = 32 * warp + lane; i < 2 * (8 - RUNS) * ROWS; i += 32 * WARPS)
      shared.sums[i % 2][RUNS + i / 2 / ROWS][i / 2 % ROWS] = 0;
  }

  // A step of x, times the norm's weights, and the sums over runs; squares are added to `squares`.
  static void lay_x(const device T* x, const device T* norm, int num_rows, int num_in, int step,
                    threadgroup Memory& shared, int warp, int lane,
                    thread float (&squares)[TURNS]) {
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int chunk = 32 * (warp + turn * WARPS) + lane;
      if (chunk >= ROWS * CHUNKS) break;  // for all lanes of a simdgroup or none
      const int row = chunk / CHUNKS, column = step * STEP + chunk % CHUNKS * 8;
      float v[8] = {};
      if (row < num_rows && column < num_in) {
        load_eight(x + size_t(row) * num_in + column, v);
        if (NORM) {
          float weights[8];
          load_eight(norm + column, weights);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            squares[turn] += v[j] * v[j];
            v[j] = float(T(v[j] * weights[j]));
          }
        }
      }
      shared.x[step % 2][row][chunk % CHUNKS] = ordered(v);
      if (BITS != 16) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += v[j];
        sum = over_lanes<RUN / 8>(sum);
        const int run = chunk % CHUNKS / (RUN / 8);
        if (lane % (RUN / 8) == 0) shared.sums[step % 2][run][row] = sum;
      }
    }
  }

  // Eight numbers in the order in which integers leave their words.
  static uint4 ordered(thread const float (&v)[8]) {
    constexpr int pairs = BITS == 16 ? 1 : 16 / BITS;
    uint4 words;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int at = word / pairs * 2 * pairs + word % pairs;
      words[word] = pair_of<T>(v[at], v[BITS == 16 ? at + 1 : at + pairs]);
    }
    return words;
  }

  template <int COUNT> static float over_lanes(float sum) {
#pragma unroll
    for (int distance = 1; distance < COUNT; distance *= 2)
      sum += simd_shuffle_xor(sum, ushort(distance));
    return sum;
  }

  static void lay_weights(Part part, threadgroup Memory& shared, int warp, int lane) {
    constexpr int pairs = BITS == 16 ? 1 : 16 / BITS, stores = STEP / 32;
    const int row = lane / 4, quarter = lane % 4;
#pragma unroll
    for (int store = 0; store < stores; ++store) {
      uint4 out;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int word = (4 * store + i) / pairs;
        out[i] = Integers<T, BITS>::pair(part.words[word / 4][word % 4], i % pairs);
      }
      shared.w[warp][row][quarter * stores + store] = out;
    }
    if (BITS != 16 && quarter < RUNS) {
      shared.scales[warp][quarter][row][row] = part.scale;
      shared.biases[warp][row][quarter] = part.bias;
    }
  }

  static void add_products(threadgroup const Memory& shared, int half_idx, int warp,
                           thread Sums (&totals)[MT]) {
    const threadgroup T* w = (const threadgroup T*)&shared.w[warp][0][0];
    const threadgroup T* x = (const threadgroup T*)&shared.x[half_idx][0][0];
#pragma unroll
    for (int run = 0; run < RUNS; ++run) {
      Sums sums[MT];
#pragma unroll
      for (int m = 0; m < MT; ++m) sums[m] = make_filled_simdgroup_matrix<float, 8>(0.0f);
#pragma unroll
      for (int k = run * RUN; k < (run + 1) * RUN; k += 8) {
        Operand rows;
        simdgroup_load(rows, w + k, STRIDE);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          Operand columns;
          simdgroup_load(columns, x + 8 * m * STRIDE + k, STRIDE, ulong2(0), true);
          if (BITS == 16)
            simdgroup_multiply_accumulate(totals[m], rows, columns, totals[m]);
          else
            simdgroup_multiply_accumulate(sums[m], rows, columns, sums[m]);
        }
      }
      if (BITS != 16) {
        Sums scales;
        simdgroup_load(scales, &shared.scales[warp][run][0][0], 8);
#pragma unroll
        for (int m = 0; m < MT; ++m)
          simdgroup_multiply_accumulate(totals[m], scales, sums[m], totals[m]);
      }
    }
    if (BITS != 16) {
      Sums biases, sums;
      simdgroup_load(biases, &shared.biases[warp][0][0], 8);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        simdgroup_load(sums, &shared.sums[half_idx][0][8 * m], ROWS);
        simdgroup_multiply_accumulate(totals[m], biases, sums, totals[m]);
      }
    }
  }

  // 1 / root mean square of each row of x.
  static void lay_factors(thread const float (&squares)[TURNS], float eps, int num_in,
                          threadgroup Memory& shared, int warp, int lane) {
    if (!NORM) return;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn) {
      const int chunk = 32 * (warp + turn * WARPS) + lane;
      if (chunk >= ROWS * CHUNKS) break;
      const float sum = over_lanes<CHUNKS>(squares[turn]);
      if (lane % CHUNKS == 0) shared.factors[chunk / CHUNKS] = precise::rsqrt(sum / num_in + eps);
    }
  }

  static float total(threadgroup const Memory& shared, int warp, int idx, int row) {
    return ((const threadgroup float*)&shared.w[warp][0][0])[idx * ROWS + row];
  }

  static float factor(threadgroup const Memory& shared, int, int row) {
    return shared.factors[row];
  }
};

}  // namespace omlx
