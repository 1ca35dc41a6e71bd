// One token a row: qkv [B, (Hq + 2 Hk) D] to q [B, Hq, 1, D], k and v [B, Hk, 1, D], with a norm
// over each head of q and k (NORM) and their halves turned by position times frequency.
//
// A threadgroup of D / 2 threads has one head of one row; thread i has the numbers i and i + D / 2.
// D is a multiple of 64. Each simdgroup adds up the squares of the whole head, so that none waits.
#include <metal_stdlib>
using namespace metal;
// body
constexpr int HALF = D / 2;
const int head = threadgroup_position_in_grid.x, row = threadgroup_position_in_grid.y;
const int i = thread_position_in_threadgroup.x, lane = thread_index_in_simdgroup;
const device T* from = qkv + (size_t(row) * (HQ + 2 * HK) + head) * D;
device T* to = v + (size_t(row) * HK + head - HQ - HK) * D;
if (head < HQ)
  to = q + (size_t(row) * HQ + head) * D;
else if (head < HQ + HK)
  to = k + (size_t(row) * HK + head - HQ) * D;
if (head >= HQ + HK) {
  to[i] = from[i];
  to[i + HALF] = from[i + HALF];
  return;
}
float a = float(from[i]), b = float(from[i + HALF]);
if (NORM) {
  float sum = 0;
  for (int j = lane; j < D; j += 32) sum += float(from[j]) * float(from[j]);
  const float factor = precise::rsqrt(simd_sum(sum) / D + eps[0]);
  const device T* weight = head < HQ ? wq : wk;
  // Rounded before it is turned, as two arrays' operations are.
  a = float(T(a * factor * float(weight[i])));
  b = float(T(b * factor * float(weight[i + HALF])));
}
const float angle = float(offset[row]) * frequency[i];
// The fast forms are for small angles.
const float s = precise::sin(angle), c = precise::cos(angle);
to[i] = T(a * c - b * s);
to[i + HALF] = T(a * s + b * c);
