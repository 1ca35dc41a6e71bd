// Up to 8 MT rows of activations [M, K] times affine-quantized weights [N, K] of 4 or 8 bits.
//
// Each weight is read once for all rows. A block takes TILES times 16 rows of weights; its WARPS share
// K in slices of NSUB runs of SUB columns, and add up in shared memory at the end. A run lies within
// one quantization group, so the product with the bare integers is scaled once per run:
//   sum of x (s q + b) = s (sum of x (q + offset)) + (b - s offset) (sum of x).
// Integers become 16-bit floats by one bitwise operation on a pair (the offset comes from it), and
// the sum of x comes from the tensor cores too, with weights of one.
#pragma once
#include "tensor_core.cuh"

namespace omlx {

// Eight columns of one activation row as operands, in the order that weights have as nibbles.
template <int BITS> __device__ void operands(uint4 r, unsigned* o) {
  if constexpr (BITS == 4) {  // one word of weights: (0,4) (1,5) (2,6) (3,7)
    o[0] = lows(r.x, r.z);
    o[1] = highs(r.x, r.z);
    o[2] = lows(r.y, r.w);
    o[3] = highs(r.y, r.w);
  } else {  // two words of weights: (0,2) (1,3) each
    o[0] = lows(r.x, r.y);
    o[1] = highs(r.x, r.y);
    o[2] = lows(r.z, r.w);
    o[3] = highs(r.z, r.w);
  }
}

// Two 16-bit numbers times two weights of a norm; their squares are added to `squares`.
template <typename T> __device__ unsigned weighted(unsigned pair, unsigned weight, float& squares) {
  const float2 x = Half<T>::floats(pair), w = Half<T>::floats(weight);
  squares += x.x * x.x + x.y * x.y;
  return Half<T>::pair(make_float2(x.x * w.x, x.y * w.y));
}

// The run's product of two weight rows with MT * 8 rows of activations, weights offset.
template <typename T, int BITS, int KPL, int WPL, int MT>
__device__ void run_product(const Words<WPL>& low, const Words<WPL>& high, const unsigned (*b)[KPL / 2],
                            float (&c)[MT][4]) {
  constexpr unsigned mask = 0x000F000Fu;
  constexpr unsigned magic = Half<T>::magic;
  if constexpr (BITS == 4) {
#pragma unroll
    for (int i = 0; i < WPL; ++i) {
      const unsigned p = low.w[i], q = high.w[i];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int s = 8 * step;
        const unsigned a0 = ((p >> s) & mask) | magic, a1 = ((q >> s) & mask) | magic;
        const unsigned a2 = ((p >> (s + 4)) & mask) | magic, a3 = ((q >> (s + 4)) & mask) | magic;
#pragma unroll
        for (int m = 0; m < MT; ++m)
          Half<T>::product(c[m], a0, a1, a2, a3, b[m][4 * i + 2 * step], b[m][4 * i + 2 * step + 1]);
      }
    }
  } else {
    float upper[MT][4] = {};
#pragma unroll
    for (int i = 0; i < WPL; ++i) {
      const unsigned p = low.w[i], q = high.w[i];
      const unsigned a0 = (p & mask) | magic, a1 = (q & mask) | magic;
      const unsigned a2 = ((p >> 8) & mask) | magic, a3 = ((q >> 8) & mask) | magic;
      const unsigned h0 = ((p >> 4) & mask) | magic, h1 = ((q >> 4) & mask) | magic;
      const unsigned h2 = ((p >> 12) & mask) | magic, h3 = ((q >> 12) & mask) | magic;
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        Half<T>::product(c[m], a0, a1, a2, a3, b[m][2 * i], b[m][2 * i + 1]);
        Half<T>::product(upper[m], h0, h1, h2, h3, b[m][2 * i], b[m][2 * i + 1]);
      }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j) c[m][j] += 16.0f * upper[m][j];
  }
}

// What a lane needs of one tile of weights in one slice of K.
template <int WPL, int NSUB, int GPS> struct Tile {
  Words<WPL> words[2][NSUB];      // weight rows q and q + 8
  alignas(8) unsigned short scales[2][GPS];  // of the slice's groups, as bits
  alignas(8) unsigned short biases[2][GPS];
};

// The weights of one projection.
struct Weights {
  const unsigned* w;
  const unsigned short* scales;
  const unsigned short* biases;
  int num_out;
};

template <typename T>
__device__ Weights weights_of(const unsigned* w, const T* scales, const T* biases, int num_out) {
  return {w, reinterpret_cast<const unsigned short*>(scales),
          reinterpret_cast<const unsigned short*>(biases), num_out};
}

// Where a tile of 16 weight rows begins.
struct Place {
  Weights weights;
  int row;
};

template <typename T, int BITS, int GROUP, int TILES, int MT, int WARPS, int NSUB, bool VECTOR>
struct Qmm {
  static constexpr int SUB = GROUP < 64 ? GROUP : 64;
  static constexpr int KPL = SUB / 4;             // columns of a lane in a run
  static constexpr int WPL = KPL * BITS / 32;     // words of a lane in a run
  static constexpr int GPS = NSUB * SUB / GROUP;  // groups of a slice
  static constexpr float OFFSET = Half<T>::offset * (BITS == 8 ? 17.0f : 1.0f);
  using Part = Tile<WPL, NSUB, GPS>;

  const T* x;
  const T* norm;  // weights of a norm over x, or null
  int num_rows, num_in;

  // Adds this warp's share of the tiles at `place(tile)` to `total`; with a norm, its share of the
  // lane's activation row's squares to `squares[m]`, for rows 8 m + lane / 4.
  template <typename Placing>
  __device__ void accumulate(const Placing& place, int warp, int lane, float (&total)[TILES][MT][4],
                             float (&squares)[MT]) const {
    const int num_runs = num_in / SUB;
    for (int slice = warp * NSUB; slice < num_runs; slice += WARPS * NSUB) {
      Part part = fetch(place(0), slice, lane);
      unsigned b[NSUB][MT][KPL / 2];
      float sums[NSUB][MT][2];
#pragma unroll
      for (int r = 0; r < NSUB; ++r)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
          columns(8 * m + lane / 4, slice + r, lane % 4, b[r][m], squares[m]);
          float c[4] = {};
#pragma unroll
          for (int j = 0; j < KPL / 4; ++j) {
            const unsigned one = Half<T>::ones;
            Half<T>::product(c, one, one, one, one, b[r][m][2 * j], b[r][m][2 * j + 1]);
          }
          sums[r][m][0] = c[0];
          sums[r][m][1] = c[1];
        }
#pragma unroll
      for (int tile = 0; tile < TILES; ++tile) {
        Part next;
        if (tile + 1 < TILES) next = fetch(place(tile + 1), slice, lane);
#pragma unroll
        for (int r = 0; r < NSUB; ++r) {
          const int g = r * SUB / GROUP;
          const float s0 = number(part.scales[0][g]), s1 = number(part.scales[1][g]);
          const float z0 = number(part.biases[0][g]) - OFFSET * s0;
          const float z1 = number(part.biases[1][g]) - OFFSET * s1;
          float c[MT][4] = {};
          run_product<T, BITS, KPL, WPL, MT>(part.words[0][r], part.words[1][r], b[r], c);
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            float* sum = total[tile][m];
            sum[0] += s0 * c[m][0] + z0 * sums[r][m][0];
            sum[1] += s0 * c[m][1] + z0 * sums[r][m][1];
            sum[2] += s1 * c[m][2] + z1 * sums[r][m][0];
            sum[3] += s1 * c[m][3] + z1 * sums[r][m][1];
          }
        }
        if (tile + 1 < TILES) part = next;
      }
    }
  }

  // This lane's columns of a run of one activation row as operands; zeros beyond the end.
  __device__ void columns(int row, int run, int t, unsigned (&b)[KPL / 2], float& squares) const {
    const bool there = row < num_rows && run < num_in / SUB;
    const int column = run * SUB + t * KPL;
#pragma unroll
    for (int part = 0; part < KPL / 8; ++part) {
      uint4 r = make_uint4(0, 0, 0, 0);
      if (there) {
        r = *reinterpret_cast<const uint4*>(x + size_t(row) * num_in + column + 8 * part);
        if (norm) {
          const uint4 w = *reinterpret_cast<const uint4*>(norm + column + 8 * part);
          r.x = weighted<T>(r.x, w.x, squares);
          r.y = weighted<T>(r.y, w.y, squares);
          r.z = weighted<T>(r.z, w.z, squares);
          r.w = weighted<T>(r.w, w.w, squares);
        }
      }
      operands<BITS>(r, b + 4 * part);
    }
  }

  static __device__ float number(unsigned short bits) {
    return Half<T>::single(*reinterpret_cast<const T*>(&bits));
  }

  __device__ Part fetch(const Place& place, int slice, int lane) const {
    const int num_runs = num_in / SUB, num_groups = num_in / GROUP;
    const int words = num_in * BITS / 32;
    const Weights& weights = place.weights;
    Part out;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const size_t row = min(place.row + lane / 4 + 8 * half, weights.num_out - 1);
#pragma unroll
      for (int r = 0; r < NSUB; ++r) {
        const int run = min(slice + r, num_runs - 1);  // beyond the end x is zero
        out.words[half][r] = stream_words<WPL>(
            weights.w + row * words + run * (SUB * BITS / 32) + lane % 4 * WPL);
      }
      const int group = slice * SUB / GROUP;
      groups(weights.scales + row * num_groups, group, num_groups, out.scales[half]);
      groups(weights.biases + row * num_groups, group, num_groups, out.biases[half]);
    }
    return out;
  }

  static __device__ void groups(const unsigned short* row, int group, int num_groups,
                                unsigned short (&out)[GPS]) {
    if constexpr (VECTOR && GPS == 4) {
      *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(row + group);
    } else if constexpr (VECTOR && GPS == 2) {
      *reinterpret_cast<unsigned*>(out) = *reinterpret_cast<const unsigned*>(row + group);
    } else {
#pragma unroll
      for (int g = 0; g < GPS; ++g) out[g] = row[min(group + g, num_groups - 1)];
    }
  }
};

// This warp's squares of each activation row, to shared memory.
template <int MT>
__device__ void lay_squares(const float (&squares)[MT], int warp, int lane, float (*to)[8 * MT]) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    float sum = squares[m];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) to[warp][8 * m + lane / 4] = sum;
  }
}

// 1 / root mean square of an activation row, from all warps' squares.
template <int MT, int WARPS>
__device__ float inverse_rms(float (*from)[8 * MT], int row, int num_in, float eps) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) sum += from[warp][row];
  return rsqrtf(sum / num_in + eps);
}

}  // namespace omlx
