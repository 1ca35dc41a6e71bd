// One token a row: qkv [B, (Hq + 2 Hk) D] to q [B, Hq, 1, D], k and v [B, Hk, 1, D], with a norm over
// each head of q and k (NORM) and their halves turned by position times frequency.
//
// A block of D / 2 threads has one head of one row; thread i has the numbers i and i + D / 2.
// body
constexpr int HALF = D / 2;
const int head = blockIdx.x, row = blockIdx.y, i = threadIdx.x;
const T* from = qkv + (size_t(row) * (HQ + 2 * HK) + head) * D;
T* to = head < HQ ? q + (size_t(row) * HQ + head) * D
        : head < HQ + HK ? k + (size_t(row) * HK + head - HQ) * D
                         : v + (size_t(row) * HK + head - HQ - HK) * D;
if (head >= HQ + HK) {
  to[i] = from[i];
  to[i + HALF] = from[i + HALF];
  return;
}
float a = float(from[i]), b = float(from[i + HALF]);
if (NORM) {
  __shared__ float part[HALF / 32];
  float sum = a * a + b * b;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (i % 32 == 0) part[i / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < HALF / 32; ++w) sum += part[w];
  const float factor = rsqrtf(sum / D + eps[0]);
  const T* weight = head < HQ ? wq : wk;
  // Rounded before it is turned, as two arrays' operations are.
  a = float(T(a * factor * float(weight[i])));
  b = float(T(b * factor * float(weight[i + HALF])));
}
float s, c;
sincosf(float(offset[row]) * frequency[i], &s, &c);
to[i] = T(a * c - b * s);
to[i + HALF] = T(a * s + b * c);
