// Up to 8 MT rows of activations [M, K] times affine-quantized weights [N, K] of 4 or 8 bits.
//
// Each weight is read once for all rows. A block has WN times WK warps: WN of them take 16 TILES rows of
// weights each, and WK share K in slices of 128 bytes of weights, and add up at the end. A warp's
// weights come to shared memory STAGES - 1 slices ahead of their use. A slice is multiplied in
// runs that lie within one quantization group, whose product with the bare integers is scaled once:
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

// Copies that run on while the warp computes; `bytes` of SIZE are read, the rest is zero.
template <int SIZE> __device__ void copy_async(void* to, const void* from, int bytes) {
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (SIZE == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(SIZE), "r"(bytes));
  }
}

__device__ inline void copies_are_one_stage() { asm volatile("cp.async.commit_group;"); }

template <int STAGES> __device__ void wait_for_all_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(STAGES));
}

template <typename T, int BITS, int GROUP, int TILES, int MT, int WN, int WK, int STAGES, bool VECTOR>
struct Qmm {
  static constexpr int SUB = GROUP < 64 ? GROUP : 64;
  static constexpr int KPL = SUB / 4;            // columns of a lane in a run
  static constexpr int WPL = KPL * BITS / 32;    // words of a lane in a run
  static constexpr int SLICE = 1024 / BITS;      // columns of 128 bytes of weights
  static constexpr int NSUB = SLICE / SUB;       // runs of a slice
  static constexpr int GPS = SLICE / GROUP;      // groups of a slice
  static constexpr bool COPIED = VECTOR && GPS > 1;
  static constexpr int STRIDE = WPL == 1 ? 144 : WPL == 2 ? 160 : 192;  // no two lanes meet at a bank
  static constexpr int SCALES = 16 * STRIDE;
  static constexpr int PART = SCALES + (COPIED ? 64 * GPS : 0);  // bytes of one tile of one stage
  static constexpr int STAGE = TILES * PART;
  static constexpr float OFFSET = Half<T>::offset * (BITS == 8 ? 17.0f : 1.0f);

  const T* x;
  const T* norm;  // weights of a norm over x, or null
  int num_rows, num_in;
  char* ring;  // of this warp: STAGES * STAGE bytes of shared memory

  // Adds this warp's share of the tiles at `place(tile)` to `total`; with a norm, its share of the
  // lane's activation row's squares to `squares[m]`, for rows 8 m + lane / 4.
  template <typename Placing>
  __device__ void accumulate(const Placing& place, int share, int lane, float (&total)[TILES][MT][4],
                             float (&squares)[MT]) const {
    const int num_slices = (num_in + SLICE - 1) / SLICE;
    const int num = (num_slices - share + WK - 1) / WK;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
      if (i < num) fetch(place, share + i * WK, lane, ring + i * STAGE);
      copies_are_one_stage();
    }
    int now = 0, free = STAGES - 1;
    for (int i = 0; i < num; ++i) {
      const int slice = share + i * WK;
      unsigned b[NSUB][MT][KPL / 2];
      float sums[NSUB][MT][2];
#pragma unroll
      for (int r = 0; r < NSUB; ++r)
#pragma unroll
        for (int m = 0; m < MT; ++m)
          columns(8 * m + lane / 4, slice * NSUB + r, lane % 4, b[r][m], squares[m]);
      wait_for_all_but<STAGES - 2>();
      __syncwarp();
      if (i + STAGES - 1 < num)
        fetch(place, slice + (STAGES - 1) * WK, lane, ring + free * STAGE);
      copies_are_one_stage();
#pragma unroll
      for (int r = 0; r < NSUB; ++r)
#pragma unroll
        for (int m = 0; m < MT; ++m) {
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
      for (int tile = 0; tile < TILES; ++tile)
        multiply(place(tile), slice, ring + now * STAGE + tile * PART, lane, b, sums, total[tile]);
      free = now;
      now = now + 1 == STAGES ? 0 : now + 1;
    }
    wait_for_all_but<0>();
  }

  __device__ void multiply(const Place& place, int slice, const char* part, int lane,
                           const unsigned (&b)[NSUB][MT][KPL / 2], const float (&sums)[NSUB][MT][2],
                           float (&total)[MT][4]) const {
    const int q = lane / 4, t = lane % 4;
    alignas(16) unsigned short scales[2][GPS], biases[2][GPS];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = q + 8 * half;
      if constexpr (COPIED) {
        copied(part + SCALES + row * (2 * GPS), scales[half]);
        copied(part + SCALES + (16 + row) * (2 * GPS), biases[half]);
      } else {
        read(place.weights.scales, place, row, slice, scales[half]);
        read(place.weights.biases, place, row, slice, biases[half]);
      }
    }
#pragma unroll
    for (int r = 0; r < NSUB; ++r) {
      const int g = r * SUB / GROUP;
      const float s0 = number(scales[0][g]), s1 = number(scales[1][g]);
      const float z0 = number(biases[0][g]) - OFFSET * s0;
      const float z1 = number(biases[1][g]) - OFFSET * s1;
      const char* at = part + (r * KPL * 4 + t * KPL) * BITS / 8;
      const auto low = *reinterpret_cast<const Words<WPL>*>(at + q * STRIDE);
      const auto high = *reinterpret_cast<const Words<WPL>*>(at + (q + 8) * STRIDE);
      float c[MT][4] = {};
      run_product<T, BITS, KPL, WPL, MT>(low, high, b[r], c);
#pragma unroll
      for (int m = 0; m < MT; ++m) {
        total[m][0] += s0 * c[m][0] + z0 * sums[r][m][0];
        total[m][1] += s0 * c[m][1] + z0 * sums[r][m][1];
        total[m][2] += s1 * c[m][2] + z1 * sums[r][m][0];
        total[m][3] += s1 * c[m][3] + z1 * sums[r][m][1];
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

  // Starts copying one slice of all tiles: eight lanes take the 128 bytes of a row.
  template <typename Placing>
  __device__ void fetch(const Placing& place, int slice, int lane, char* to) const {
    const int row_bytes = num_in * BITS / 8, at = slice * 128 + lane % 8 * 16;
    const int bytes = at < row_bytes ? 16 : 0;
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile) {
      const Place from = place(tile);
      const Weights& weights = from.weights;
      const char* words = reinterpret_cast<const char*>(weights.w);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int row = 4 * step + lane / 8;
        const size_t source = min(from.row + row, weights.num_out - 1);
        copy_async<16>(to + row * STRIDE + lane % 8 * 16, words + source * row_bytes + (bytes ? at : 0),
                       bytes);
      }
      if constexpr (COPIED) {
        const size_t source = min(from.row + lane % 16, weights.num_out - 1);
        const unsigned short* numbers = lane < 16 ? weights.scales : weights.biases;
        copy_async<2 * GPS>(to + SCALES + lane * (2 * GPS),
                            numbers + source * (num_in / GROUP) + slice * GPS, 2 * GPS);
      }
      to += PART;
    }
  }

  static __device__ void copied(const char* from, unsigned short (&out)[GPS]) {
    if constexpr (GPS == 8) {
      *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
    } else if constexpr (GPS == 4) {
      *reinterpret_cast<uint2*>(out) = *reinterpret_cast<const uint2*>(from);
    } else {
      *reinterpret_cast<unsigned*>(out) = *reinterpret_cast<const unsigned*>(from);
    }
  }

  __device__ void read(const unsigned short* numbers, const Place& place, int row, int slice,
                       unsigned short (&out)[GPS]) const {
    const int num_groups = num_in / GROUP;
    const size_t from = size_t(min(place.row + row, place.weights.num_out - 1)) * num_groups;
#pragma unroll
    for (int g = 0; g < GPS; ++g) out[g] = numbers[from + min(slice * GPS + g, num_groups - 1)];
  }
};

// This warp's squares of each activation row, to shared memory.
template <int MT>
__device__ void lay_squares(const float (&squares)[MT], int share, int lane, float (*to)[8 * MT]) {
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    float sum = squares[m];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) to[share][8 * m + lane / 4] = sum;
  }
}

// 1 / root mean square of an activation row, from all warps' squares.
template <int MT, int WK>
__device__ float inverse_rms(float (*from)[8 * MT], int row, int num_in, float eps) {
  float sum = 0;
#pragma unroll
  for (int share = 0; share < WK; ++share) sum += from[share][row];
  return rsqrtf(sum / num_in + eps);
}

}  // namespace omlx
