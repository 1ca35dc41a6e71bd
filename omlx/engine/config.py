"""What an engine is started with: plain values, so that they can cross to its process.

Knows nothing about where the values come from.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One model and how to run it; None means: decide from the machine.

    `allowed_bytes` is what it may use of `memory_limit` at first, None for all of it;
    `kernel_records` is the file of the verdicts on kernels, empty for none.
    """

    model_id: str
    model_path: str
    max_active: int = 8
    max_waiting: int = 64
    prefill_chunk: int | None = None
    max_gap_s: float = 0.25
    ageing_s: float = 30.0
    cache_enabled: bool = True
    cache_dir: str = ""
    block_size: int = 256
    snapshot_interval: int = 4096
    memory_limit: int | str = "balanced"
    allowed_bytes: int | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    state_bytes: int | None = None
    daily_bytes: int | None = None
    disk_bytes_per_s: int = 0
    min_free_bytes: int = 10 * 10**9
    load: str = "auto"
    write_delay_s: float = 2.0
    drain_s: float = 10.0
    warm_up: bool = True
    kernel_records: str = ""
    require_kernels: bool = False
    log_level: str = "info"
    log_file: str | None = None
    log_max_bytes: int = 10**7
    log_keep: int = 5
