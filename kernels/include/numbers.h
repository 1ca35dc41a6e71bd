// 16-bit numbers as halves of words, and packed integers made into them, for the Metal kernels.
#pragma once
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

namespace omlx {

// The numbers of a word, the first in its low half.
template <typename T> float low(uint word) { return float(as_type<T>(ushort(word & 0xFFFFu))); }
template <typename T> float high(uint word) { return float(as_type<T>(ushort(word >> 16))); }

template <typename T> uint pair_of(float first, float second) {
  return uint(as_type<ushort>(T(first))) | (uint(as_type<ushort>(T(second))) << 16);
}

// The low halves of two words, and their high halves.
inline uint lows(uint a, uint b) { return (a & 0xFFFFu) | (b << 16); }
inline uint highs(uint a, uint b) { return (a >> 16) | (b & 0xFFFF0000u); }

// Weights [num_out, K] of BITS bits; those of 16 bits are two in a word, without scales and biases.
template <typename T> struct Weights {
  const device uint* words;
  const device T* scales;
  const device T* biases;
  int num_out;
};

// Weight rows that lie together: `row` is the first.
template <typename T> struct Place {
  Weights<T> weights;
  int row;
};

// A row of the weights that a simdgroup has, of which half lie at one place and half at another.
template <typename T> struct Row {
  Weights<T> weights;
  size_t at;
};

template <typename T> Row<T> row_of(Place<T> one, Place<T> other, int idx, int half_rows) {
  Place<T> place = one;
  if (idx >= half_rows) {
    place = other;
    idx -= half_rows;
  }
  const Row<T> row = {place.weights, size_t(min(place.row + idx, place.weights.num_out - 1))};
  return row;
}

inline uint shifted(uint word, int left) { return left < 0 ? word >> -left : word << left; }

// Pair `idx` of the integers of a word of BITS bits, as halves of which each is 2^BITS too large:
// an integer is the highest bits of a half's fraction, below an exponent of BITS. The integers of a
// pair are idx and idx + 16 / BITS of the word.
template <int BITS> uint half_pair(uint word, int idx) {
  const uint mask = BITS == 4 ? 0x03C003C0u : 0x03FC03FCu;
  const uint exponent = BITS == 4 ? 0x4C004C00u : 0x5C005C00u;
  return (shifted(word, 10 - BITS - BITS * idx) & mask) | exponent;
}

template <int BITS> float half_offset() { return float(1 << BITS); }

// The same as numbers of T, each `offset` too large.
template <typename T, int BITS> struct Integers;

template <> struct Integers<half, 4> {
  static float offset() { return half_offset<4>(); }
  static uint pair(uint word, int idx) { return half_pair<4>(word, idx); }
};

template <> struct Integers<half, 8> {
  static float offset() { return half_offset<8>(); }
  static uint pair(uint word, int idx) { return half_pair<8>(word, idx); }
};

template <> struct Integers<bfloat, 4> {
  static float offset() { return 16.0f; }
  static uint pair(uint word, int idx) {
    return (shifted(word, 3 - 4 * idx) & 0x00780078u) | 0x41804180u;
  }
};

template <> struct Integers<bfloat, 8> {
  // A float of 8 bits ends in 16 zeros.
  static float offset() { return 0.0f; }
  static uint pair(uint word, int idx) {
    const uint both = word >> (8 * idx);
    return highs(as_type<uint>(float(both & 0xFFu)), as_type<uint>(float((both >> 16) & 0xFFu)));
  }
};

template <typename T> struct Integers<T, 16> {
  static float offset() { return 0.0f; }
  static uint pair(uint word, int) { return word; }
};

// Eight neighbours as floats, of an address that is a multiple of 16 bytes.
template <typename T> void load_eight(const device T* from, thread float (&to)[8]) {
  const uint4 words = *(const device uint4*)from;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = low<T>(words[i]);
    to[2 * i + 1] = high<T>(words[i]);
  }
}

// Rows of an array whose last axis is the columns.
inline int leading_rows(const constant int* shape, int ndim) {
  int rows = 1;
  for (int axis = 0; axis + 1 < ndim; ++axis) rows *= shape[axis];
  return rows;
}

}  // namespace omlx
