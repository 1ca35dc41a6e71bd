// usage: racer KERNEL GROUPS_X GROUPS_Y THREADS FILE...   runs a kernel under ThreadSanitizer
// Each file is an argument: read before, written after.
#include "threads.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <vector>

int main(int count, char** words) {
  if (count < 6) return 2;
  std::vector<void*> arguments;
  std::vector<size_t> sizes;
  for (int i = 5; i < count; ++i) {
    FILE* file = fopen(words[i], "rb");
    if (file == nullptr) return 2;
    fseek(file, 0, SEEK_END);
    const size_t bytes = ftell(file);
    rewind(file);
    void* data = aligned_alloc(16, (bytes + 15) / 16 * 16);
    if (fread(data, 1, bytes, file) != bytes) return 2;
    fclose(file);
    arguments.push_back(data);
    sizes.push_back(bytes);
  }
  const ShimKernel kernel = ShimKernel(dlsym(RTLD_DEFAULT, words[1]));
  if (kernel == nullptr) return 2;
  const unsigned groups[3] = {unsigned(atoi(words[2])), unsigned(atoi(words[3])), 1};
  const char* error = shim_dispatch(kernel, arguments.data(), groups, atoi(words[4]));
  if (error != nullptr) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  for (int i = 5; i < count; ++i) {
    FILE* file = fopen(words[i], "wb");
    if (file == nullptr || fwrite(arguments[i - 5], 1, sizes[i - 5], file) != sizes[i - 5]) return 2;
    fclose(file);
  }
  return 0;
}
