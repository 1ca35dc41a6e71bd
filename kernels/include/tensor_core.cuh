// Tensor-core products of 16 rows of weights with 8 rows of activations, for both 16-bit types.
//
// A is 16 weight rows by 16 columns, B 16 columns by 8 activation rows, the sum 16 by 8 in float.
// With lane = 4 q + t: A holds rows q and q + 8, B holds activation row q, and the sum of a lane is
// that of weight rows q (c0, c1) and q + 8 (c2, c3) with activation rows 2 t and 2 t + 1.
// The order of columns is free as long as A and B agree, so a lane takes what lies together.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace omlx {

template <typename T> struct Half;

template <> struct Half<__nv_bfloat16> {
  // 128 + q is exact in bfloat16 for q of 4 bits: its bits are 0x4300 | q.
  static constexpr unsigned magic = 0x43004300u;
  static constexpr float offset = 128.0f;
  static constexpr unsigned ones = 0x3F803F80u;
  static __device__ float2 floats(unsigned pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
  }
  static __device__ unsigned pair(float2 value) {
    __nv_bfloat162 both = __floats2bfloat162_rn(value.x, value.y);
    return *reinterpret_cast<unsigned*>(&both);
  }
  static __device__ float single(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __device__ __nv_bfloat16 rounded(float value) { return __float2bfloat16_rn(value); }
  static __device__ void product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                 unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

template <> struct Half<__half> {
  // 1024 + q is exact in half for q of 4 bits: its bits are 0x6400 | q.
  static constexpr unsigned magic = 0x64006400u;
  static constexpr float offset = 1024.0f;
  static constexpr unsigned ones = 0x3C003C00u;
  static __device__ float2 floats(unsigned pair) {
    return __half22float2(*reinterpret_cast<__half2*>(&pair));
  }
  static __device__ unsigned pair(float2 value) {
    __half2 both = __floats2half2_rn(value.x, value.y);
    return *reinterpret_cast<unsigned*>(&both);
  }
  static __device__ float single(__half value) { return __half2float(value); }
  static __device__ __half rounded(float value) { return __float2half_rn(value); }
  static __device__ void product(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                 unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
};

template <int NUM> struct alignas(4 * NUM) Words {
  unsigned w[NUM];
};

// NUM words of weights, read once: past the first-level cache.
template <int NUM> __device__ Words<NUM> stream_words(const unsigned* from) {
  Words<NUM> out;
  if constexpr (NUM == 4) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3]) : "l"(from));
  } else if constexpr (NUM == 2) {
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(out.w[0]), "=r"(out.w[1]) : "l"(from));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(out.w[0]) : "l"(from));
  }
  return out;
}

// The low halves of two words, and the high halves.
__device__ inline unsigned lows(unsigned a, unsigned b) { return __byte_perm(a, b, 0x5410); }
__device__ inline unsigned highs(unsigned a, unsigned b) { return __byte_perm(a, b, 0x7632); }

// Rows of an array whose last axis is the columns.
template <typename Shape> __device__ int leading_rows(const Shape& shape, int ndim) {
  int rows = 1;
  for (int axis = 0; axis + 1 < ndim; ++axis) rows *= shape[axis];
  return rows;
}

// A warp's sums of its tiles to shared memory, by weight row and activation row.
template <int ROWS, int MT>
__device__ void lay_out(const float (&total)[ROWS / 16][MT][4], int lane, float (*to)[8 * MT + 1]) {
#pragma unroll
  for (int tile = 0; tile < ROWS / 16; ++tile)
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        to[16 * tile + lane / 4 + 8 * (j / 2)][8 * m + 2 * (lane % 4) + j % 2] = total[tile][m][j];
}

// All warps' sums of one weight row and activation row.
template <int WARPS, int WIDTH>
__device__ float over_warps(float (*shared)[WIDTH], int rows, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < WARPS; ++warp) sum += shared[warp * rows + row][column];
  return sum;
}

}  // namespace omlx
