"""An allocator that keeps freed buffers and notes in which order it is called."""


class FakeAllocator:
    """Stands for mlx.core; a test says what arrays take and what is freed."""

    def __init__(self, *, active_bytes: int = 0, freed_bytes: int = 0) -> None:
        self.active_bytes = active_bytes
        self.freed_bytes = freed_bytes
        self.calls: list[str] = []
        self.error: Exception | None = None  # of the next synchronize

    def get_active_memory(self) -> int:
        return self.active_bytes

    def get_cache_memory(self) -> int:
        return self.freed_bytes

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        error, self.error = self.error, None
        if error is not None:
            raise error

    def clear_cache(self) -> None:
        self.calls.append("clear")
        self.freed_bytes = 0
