// A block's array y [leaves, heads, count, row] of the leaves' buffers x0, x1, … [1, heads, room,
// WIDTH], from token `begin` on. With PACKED a row is WIDTH signed bytes and then a float for each
// 32 of them; without, the numbers as they are. place: begin, count, heads, room.
//
// Threadgroups along y have a leaf each. Without PACKED a thread moves 8 numbers; with it a
// simdgroup has a row.
#include <metal_stdlib>
using namespace metal;
#define FROM(n) \
  case n: from = x##n; break;
// body
const int leaf = threadgroup_position_in_grid.y;
const device T* from = x0;
switch (leaf) { EACH_x(FROM) }
const int begin = place[0], count = place[1], heads = place[2], room = place[3];
const int each = PACKED ? 32 : WIDTH / 8;
const int at = threadgroup_position_in_grid.x * threads_per_threadgroup.x
    + thread_position_in_threadgroup.x;
const int row = at / each, part = at % each;
if (row >= heads * count) return;
from += (size_t(row / count) * room + begin + row % count) * WIDTH;
const size_t to = size_t(leaf) * heads * count + row;
if (!PACKED) {
  ((device uint4*)y)[to * (WIDTH / 8) + part] = ((const device uint4*)from)[part];
  return;
}
device uchar* bytes = (device uchar*)y + to * (WIDTH + WIDTH / 8);
for (int group = 0; group < WIDTH / 32; ++group) {
  const float number = float(from[32 * group + part]);
  const float scale = simd_max(fabs(number)) / 127.0f;
  bytes[32 * group + part] = as_type<uchar>(char(rint(scale > 0 ? number / scale : 0.0f)));
  if (part == 0) ((device float*)(bytes + WIDTH))[group] = scale;
}
