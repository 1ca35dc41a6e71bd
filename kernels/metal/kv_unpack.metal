// Leaves' buffers y0, y1, … [1, heads, room, WIDTH] of pieces of blocks' arrays x0, x1, … [leaves,
// heads, stored, row], one after the other. With PACKED a row is WIDTH signed bytes and then a
// float for each 32 of them. place: first leaf, leaves, heads, room; then of each piece where it
// begins in a buffer, its first token, how many it has, how many are stored: 0 asks for zeros.
//
// Threadgroups along y have a piece each; a thread moves 8 numbers.
#include "numbers.h"
#define FROM(n) \
  case n: from = (const device uchar*)x##n; break;
#define TO(n) \
  case n: to = y##n; break;
// body
const int first = place[0], leaves = place[1], heads = place[2], room = place[3];
const int idx = threadgroup_position_in_grid.y;
const int start = place[4 + 4 * idx], begin = place[5 + 4 * idx];
const int size = place[6 + 4 * idx], stored = place[7 + 4 * idx];
const int each = WIDTH / 8;
const int at = threadgroup_position_in_grid.x * threads_per_threadgroup.x
    + thread_position_in_threadgroup.x;
const int part = at % each, token = at / each % size, head = at / each / size % heads;
const int leaf = at / each / size / heads;
if (leaf >= leaves) return;
device T* to = y0;
switch (leaf) { EACH_y(TO) }
device uint4* into =
    (device uint4*)(to + (size_t(head) * room + start + token) * WIDTH) + part;
if (stored == 0) {
  *into = uint4(0);
  return;
}
const device uchar* from = (const device uchar*)x0;
switch (idx) { EACH_x(FROM) }
const size_t row = (size_t(first + leaf) * heads + head) * stored + begin + token;
if (!PACKED) {
  *into = ((const device uint4*)from)[row * each + part];
  return;
}
from += row * (WIDTH + WIDTH / 8);
const float scale = ((const device float*)(from + WIDTH))[part / 4];
uint4 words;
#pragma unroll
for (int pair = 0; pair < 4; ++pair) {
  const uint both = ((const device ushort*)from)[4 * part + pair];
  const float low = float(as_type<char>(uchar(both & 0xFFu)));
  const float high = float(as_type<char>(uchar(both >> 8)));
  words[pair] = omlx::pair_of<T>(low * scale, high * scale);
}
*into = words;
