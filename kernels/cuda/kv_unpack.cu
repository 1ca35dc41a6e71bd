// Leaves' buffers y0, y1, … [1, heads, room, WIDTH] of pieces of blocks' arrays x0, x1, … [leaves,
// heads, stored, row], one after the other. With PACKED a row is WIDTH signed bytes and then a
// float32 for each 32 of them. place: first leaf, leaves, heads, room; then of each piece where it
// begins in a buffer, its first token, how many it has, how many are stored: 0 asks for zeros.
//
// Blocks along y have a piece each; a thread moves 8 numbers.
#define FROM(n) \
  case n: from = (const unsigned char*)x##n; break;
#define TO(n) \
  case n: to = y##n; break;
// body
const int first = place[0], leaves = place[1], heads = place[2], room = place[3];
const int* piece = place + 4 + 4 * blockIdx.y;
const int size = piece[2], stored = piece[3];
const int each = WIDTH / 8;
const int at = blockIdx.x * blockDim.x + threadIdx.x;
const int part = at % each, token = at / each % size, head = at / each / size % heads;
const int leaf = at / each / size / heads;
if (leaf >= leaves) return;
T* to = nullptr;
switch (leaf) { EACH_y(TO) }
uint4* into = (uint4*)(to + (size_t(head) * room + piece[0] + token) * WIDTH) + part;
if (stored == 0) {
  *into = make_uint4(0, 0, 0, 0);
  return;
}
const unsigned char* from = nullptr;
switch (blockIdx.y) { EACH_x(FROM) }
const size_t row = (size_t(first + leaf) * heads + head) * stored + piece[1] + token;
if (!PACKED) {
  *into = ((const uint4*)from)[row * each + part];
  return;
}
from += row * (WIDTH + WIDTH / 8);
const float scale = ((const float*)(from + WIDTH))[part / 4];
const unsigned words[2] = {((const unsigned*)from)[2 * part], ((const unsigned*)from)[2 * part + 1]};
alignas(16) T numbers[8];
for (int i = 0; i < 8; ++i)
  numbers[i] = T(float((signed char)(words[i / 4] >> (8 * (i % 4)))) * scale);
*into = *(const uint4*)numbers;
