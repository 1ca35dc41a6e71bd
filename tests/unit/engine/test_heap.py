"""One heap for all threads, which gives back what is free."""

import subprocess
import sys

import pytest

from omlx.engine.heap import with_one_heap

_THREADS = """
import ctypes, sys, threading
from omlx.engine.footprint import footprint_bytes
from omlx.engine.heap import c_library_trim, share_one_heap
if sys.argv[1] == "one":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
SIZE, NUM = 100_000, 400  # below the size that is mapped by itself

def work():
    blocks = [libc.malloc(SIZE) for _ in range(NUM)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in blocks:
        libc.free(block)

big = libc.malloc(30_000_000)
libc.free(big)  # from now on glibc keeps 60 MB at the top of a heap
before = footprint_bytes()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
trim = c_library_trim()
trim()
print(footprint_bytes() - before)
"""


def test_the_environment_has_the_last_word() -> None:
    assert with_one_heap({"A": "1"}) == {"A": "1", "MALLOC_ARENA_MAX": "1"}
    assert with_one_heap({"MALLOC_ARENA_MAX": "4"}) == {"MALLOC_ARENA_MAX": "4"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heaps are Linux's")
def test_what_threads_have_freed_goes_back() -> None:
    def grown(how: str) -> int:
        command = [sys.executable, "-c", _THREADS, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert grown("one") < 10_000_000 < grown("many"), "without it, the tops of their heaps stay"
