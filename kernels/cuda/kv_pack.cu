// A block's array y [leaves, heads, count, row] of the leaves' buffers x0, x1, … [1, heads, room,
// WIDTH], from token `begin` on. With PACKED a row is WIDTH signed bytes and then a float32 for each
// 32 of them; without, the numbers as they are. place: begin, count, heads, room.
//
// Blocks along y have a leaf each. Without PACKED a thread moves 8 numbers; with it a warp has a row.
#define FROM(n) \
  case n: from = x##n; break;
// body
const T* from = nullptr;
switch (blockIdx.y) { EACH_x(FROM) }
const int begin = place[0], count = place[1], heads = place[2], room = place[3];
const int each = PACKED ? 32 : WIDTH / 8;
const int at = blockIdx.x * blockDim.x + threadIdx.x;
const int row = at / each, part = at % each;
if (row >= heads * count) return;
from += (size_t(row / count) * room + begin + row % count) * WIDTH;
const size_t to = size_t(blockIdx.y) * heads * count + row;
if (!PACKED) {
  ((uint4*)y)[to * (WIDTH / 8) + part] = ((const uint4*)from)[part];
  return;
}
unsigned char* bytes = (unsigned char*)y + to * (WIDTH + WIDTH / 8);
for (int group = 0; group < WIDTH / 32; ++group) {
  const float number = float(from[32 * group + part]);
  float most = fabsf(number);
  for (int lanes = 16; lanes > 0; lanes /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
  const float scale = most / 127.0f;
  bytes[32 * group + part] = (unsigned char)(signed char)rintf(scale > 0 ? number / scale : 0);
  if (part == 0) ((float*)(bytes + WIDTH))[group] = scale;
}
