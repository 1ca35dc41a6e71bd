// Threads of a threadgroup, as contexts that take turns on one thread of the machine.
//
// A thread runs until it waits or ends, so runs are repeatable. Under ThreadSanitizer each is a
// fiber of its own and a turn orders nothing: only barriers do, as on a GPU.
#pragma once
#include <cstddef>

namespace shim {

// Where a thread is: its place in its threadgroup, its threadgroup's in the grid, and their numbers.
struct Where {
  unsigned group[3], groups[3], index, size;
};

enum Scope { SIMDGROUP, THREADGROUP };

constexpr int LANES = 32;
constexpr int SLOT_BYTES = 32;

// Waits until all threads of the scope are at this place; with `fence`, what they wrote is seen.
void wait(Scope scope, bool fence, const char* file, int line);

// What every lane of the simdgroup brought: 32 slots of SLOT_BYTES.
const unsigned char* exchange(const void* mine, int bytes, const char* file, int line);

// Lanes of this thread's simdgroup, and its place among them.
int num_lanes();
int lane();

// The threadgroup's memory number `id`; it is not zero at first.
void* group_memory(int id, size_t bytes);

[[noreturn]] void fail(const char* what, const char* file, int line);

}  // namespace shim

typedef void (*ShimKernel)(void** arguments, const shim::Where* where);

extern "C" {
// Runs a grid; what went wrong, or null.
const char* shim_dispatch(ShimKernel kernel, void** arguments, const unsigned* groups, unsigned threads);
// Memory whose end is the end of what may be read or written.
void* shim_buffer(size_t bytes);
void shim_release();
}
