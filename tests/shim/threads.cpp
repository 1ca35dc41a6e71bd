// See threads.h. Compiled without ThreadSanitizer, so that turns are no accesses of the kernel's.
#include "threads.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

extern "C" {
void* __tsan_get_current_fiber() __attribute__((weak));
void* __tsan_create_fiber(unsigned) __attribute__((weak));
void __tsan_destroy_fiber(void*) __attribute__((weak));
void __tsan_switch_to_fiber(void*, unsigned) __attribute__((weak));
void __tsan_acquire(void*) __attribute__((weak));
void __tsan_release(void*) __attribute__((weak));
}

namespace {

constexpr size_t STACK_BYTES = 128 * 1024;
constexpr size_t GROUP_BYTES = 32 * 1024;
constexpr unsigned NO_ORDER = 1;  // a switch to a fiber orders nothing
constexpr int MAX_MEMORIES = 8;

enum State { RUNNABLE, WAITS_FOR_SIMDGROUP, WAITS_FOR_THREADGROUP, ENDED };

struct Thread {
  ucontext_t context;
  void* fiber;
  State state;
  const char* file;
  int line;
  unsigned turns[2];      // barriers passed, by scope
  unsigned exchanges;
  unsigned char slots[2][shim::SLOT_BYTES];
  shim::Where where;
};

struct Block {
  char* start;
  size_t mapped, bytes;
};

struct Group {
  std::vector<Thread> threads;
  std::vector<char> simdgroup_sync;  // two places for each simdgroup
  char threadgroup_sync[2];
  char* memory;
  size_t used;
  size_t offsets[MAX_MEMORIES], sizes[MAX_MEMORIES];
  std::vector<unsigned char> gathered;
};

Group* group;
Thread* now;
ucontext_t main_context;
void* main_fiber;
char done_sync;
ShimKernel kernel;
void** arguments;
std::string error;
std::vector<Block> blocks;

bool is_watched() { return __tsan_create_fiber != nullptr; }

char* mapped(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    perror("mmap");
    abort();
  }
  return static_cast<char*>(at);
}

void leave() {
  if (is_watched()) __tsan_switch_to_fiber(main_fiber, NO_ORDER);
  swapcontext(&now->context, &main_context);
}

void enter(Thread& thread) {
  now = &thread;
  if (is_watched()) __tsan_switch_to_fiber(thread.fiber, NO_ORDER);
  swapcontext(&main_context, &thread.context);
}

void start() {
  kernel(arguments, &now->where);
  if (is_watched()) __tsan_release(&done_sync);
  now->state = ENDED;
  leave();
}

std::string described(const Thread& thread) {
  std::string text = "thread " + std::to_string(thread.where.index);
  if (thread.state == ENDED) return text + " ended";
  return text + " waits at " + thread.file + ":" + std::to_string(thread.line);
}

// Whether all of `count` threads from `first` on are at one place of that kind; then they go on.
bool released(size_t first, size_t count, State state) {
  Thread* threads = group->threads.data() + first;
  for (size_t i = 0; i < count; ++i)
    if (threads[i].state != state || threads[i].line != threads[0].line ||
        strcmp(threads[i].file, threads[0].file) != 0)
      return false;
  for (size_t i = 0; i < count; ++i) threads[i].state = RUNNABLE;
  return true;
}

bool released_any() {
  const size_t count = group->threads.size();
  bool any = released(0, count, WAITS_FOR_THREADGROUP);
  for (size_t first = 0; first < count; first += shim::LANES) {
    const size_t lanes = count - first < shim::LANES ? count - first : shim::LANES;
    any |= released(first, lanes, WAITS_FOR_SIMDGROUP);
  }
  return any;
}

// Runs all threads of the group until they end or none can go on.
void run_group(bool backwards) {
  const size_t count = group->threads.size();
  for (;;) {
    for (size_t i = 0; i < count; ++i) {
      Thread& thread = group->threads[backwards ? count - 1 - i : i];
      if (thread.state == RUNNABLE) enter(thread);
      if (!error.empty()) return;
    }
    if (released_any()) continue;
    const Thread* first = nullptr;
    for (const Thread& thread : group->threads)
      if (thread.state != ENDED && first == nullptr) first = &thread;
    if (first == nullptr) return;
    error = described(*first);
    for (const Thread& thread : group->threads)
      if (thread.state == ENDED || thread.line != first->line) {
        error += ", but " + described(thread);
        break;
      }
    return;
  }
}

void prepare(Thread& thread, char* stack) {
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = stack;
  thread.context.uc_stack.ss_size = STACK_BYTES;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, start, 0);
  thread.fiber = is_watched() ? __tsan_create_fiber(0) : nullptr;
}

void on_fault(int, siginfo_t* info, void*) {
  const char* at = static_cast<const char*>(info->si_addr);
  char text[200];
  snprintf(text, sizeof text, "an access outside of all arrays, at %p", info->si_addr);
  ptrdiff_t nearest = 1 << 20;  // of all arrays' ends before it
  for (size_t i = 0; i < blocks.size(); ++i) {
    const ptrdiff_t beyond = at - (blocks[i].start + blocks[i].mapped);
    if (beyond >= 0 && beyond < nearest) {
      nearest = beyond;
      snprintf(text, sizeof text, "an access %td bytes beyond the end of argument %zu", beyond, i);
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i)
    if (at < blocks[i].start && at >= blocks[i].start - getpagesize())
      snprintf(text, sizeof text, "an access before the start of argument %zu", i);
  error = text;
  setcontext(&main_context);
}

}  // namespace

namespace shim {

void wait(Scope scope, bool fence, const char* file, int line) {
  Thread* thread = now;
  char* sync = scope == THREADGROUP ? group->threadgroup_sync
                                    : &group->simdgroup_sync[thread->where.index / LANES * 2];
  // A thread ahead is at the next barrier at most, which has the other place.
  if (fence) sync += thread->turns[scope]++ % 2;
  if (fence && is_watched()) __tsan_release(sync);
  thread->state = scope == THREADGROUP ? WAITS_FOR_THREADGROUP : WAITS_FOR_SIMDGROUP;
  thread->file = file;
  thread->line = line;
  leave();
  if (fence && is_watched()) __tsan_acquire(sync);
}

const unsigned char* exchange(const void* mine, int bytes, const char* file, int line) {
  Thread* thread = now;
  const int slot = thread->exchanges++ % 2;
  const unsigned char* from = static_cast<const unsigned char*>(mine);
  for (volatile int i = 0; i < bytes; i = i + 1) thread->slots[slot][i] = from[i];  // no memcpy, which is watched
  wait(SIMDGROUP, false, file, line);
  const size_t first = thread->where.index / LANES * LANES;
  unsigned char* to = group->gathered.data();
  for (int other = 0; other < num_lanes(); ++other)
    for (volatile int i = 0; i < bytes; i = i + 1)
      to[other * SLOT_BYTES + i] = group->threads[first + other].slots[slot][i];
  return to;
}

int num_lanes() {
  const unsigned first = now->where.index / LANES * LANES, left = now->where.size - first;
  return left < LANES ? left : LANES;
}

int lane() { return now->where.index % LANES; }

void* group_memory(int id, size_t bytes) {
  if (id >= MAX_MEMORIES) fail("too many threadgroup variables", __FILE__, __LINE__);
  if (group->sizes[id] == 0) {
    group->offsets[id] = group->used;
    group->sizes[id] = bytes;
    group->used += (bytes + 15) / 16 * 16;
    if (group->used > GROUP_BYTES) fail("more than 32768 bytes of threadgroup memory", "", 0);
  }
  return group->memory + group->offsets[id];
}

void fail(const char* what, const char* file, int line) {
  error = std::string(what) + " (" + file + ":" + std::to_string(line) + ")";
  leave();
  abort();
}

}  // namespace shim

const char* shim_dispatch(ShimKernel run, void** given, const unsigned* groups, unsigned threads) {
  kernel = run;
  arguments = given;
  error.clear();
  struct sigaction action = {}, before;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  if (!is_watched()) sigaction(SIGSEGV, &action, &before);
  if (is_watched()) main_fiber = __tsan_get_current_fiber();
  const unsigned count = groups[0] * groups[1] * groups[2];
  // Memory is not used again, so that threadgroups have nothing in common but the arrays.
  const size_t stacks = threads * STACK_BYTES;
  const size_t each = is_watched() ? stacks + GROUP_BYTES : 0, total = stacks + GROUP_BYTES + each * count;
  char* memory = mapped(total);
  // Freed after all have ended: to free is to write, and nothing orders it before.
  std::vector<std::unique_ptr<Group>> all;
  for (unsigned i = 0; i < count && error.empty(); ++i) {
    all.emplace_back(new Group);
    Group& here = *all.back();
    group = &here;
    here.memory = memory + each * i;
    for (size_t byte = 0; byte < GROUP_BYTES; ++byte) ((volatile char*)here.memory)[byte] = char(0xFF);
    here.used = 0;
    memset(here.sizes, 0, sizeof here.sizes);
    here.threads.resize(threads);
    here.simdgroup_sync.resize((threads + shim::LANES - 1) / shim::LANES * 2);
    here.gathered.resize(shim::LANES * shim::SLOT_BYTES);
    for (unsigned thread = 0; thread < threads; ++thread) {
      Thread& it = here.threads[thread];
      it.where = {{i % groups[0], i / groups[0] % groups[1], i / groups[0] / groups[1]},
                  {groups[0], groups[1], groups[2]}, thread, threads};
      prepare(it, here.memory + GROUP_BYTES + thread * STACK_BYTES);
    }
    run_group(i % 2);
    if (is_watched() && error.empty())
      for (Thread& it : here.threads) __tsan_destroy_fiber(it.fiber);
  }
  if (is_watched()) __tsan_acquire(&done_sync);
  munmap(memory, total);
  if (!is_watched()) sigaction(SIGSEGV, &before, nullptr);
  return error.empty() ? nullptr : error.c_str();
}

void* shim_buffer(size_t bytes) {
  const size_t page = getpagesize(), rounded = (bytes + 15) / 16 * 16;
  const size_t whole = (rounded + page - 1) / page * page;
  char* start = mapped(whole + 2 * page);
  mprotect(start, page, PROT_NONE);
  mprotect(start + page + whole, page, PROT_NONE);
  blocks.push_back({start + page, whole, bytes});
  return start + page + whole - rounded;
}

void shim_release() {
  const size_t page = getpagesize();
  for (const Block& block : blocks) munmap(block.start - page, block.mapped + 2 * page);
  blocks.clear();
}
