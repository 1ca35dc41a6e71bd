// What the compiler calls to round a float to bfloat: to nearest, ties to even.
#include <cstdint>

extern "C" __bf16 __truncsfbf2(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (value != value)
    bits |= 0x400000u;
  else
    bits += 0x7FFFu + ((bits >> 16) & 1);
  return __builtin_bit_cast(__bf16, uint16_t(bits >> 16));
}
