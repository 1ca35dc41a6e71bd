"""Slots: so many jobs at a time and no more, and every job once."""

import threading
from concurrent.futures import ThreadPoolExecutor

from omlx.cache.slots import Slots
from tests.fakes.executor import ManualExecutor


def test_jobs_wait_for_a_slot_and_run_in_order() -> None:
    threads, ran = ManualExecutor(), list[int]()
    slots = Slots(threads, 2)
    for i in range(5):
        slots.submit(lambda i=i: ran.append(i))
    assert len(threads.jobs) == 2
    assert threads.run() == 5
    assert ran == [0, 1, 2, 3, 4]


def test_a_limit_that_rises_starts_more_at_once_and_one_that_falls_starts_none() -> None:
    threads, ran = ManualExecutor(), list[int]()
    slots = Slots(threads, 1)
    for i in range(6):
        slots.submit(lambda i=i: ran.append(i))
    slots.set_limit(3)
    assert len(threads.jobs) == 3
    slots.set_limit(1)
    for _ in range(2):
        future, job = threads.jobs.popleft()
        future.set_result(job())
        assert len(threads.jobs) < 3 and ran
    assert len(threads.jobs) == 1, "two have ended and none was begun for them"
    threads.run()
    assert ran == [0, 1, 2, 3, 4, 5]


def test_real_threads_run_everything_within_the_limit() -> None:
    lock, over = threading.Lock(), threading.Event()
    counts = {"now": 0, "most": 0, "all": 0}

    def job() -> None:
        with lock:
            counts["now"] += 1
            counts["all"] += 1
            counts["most"] = max(counts["most"], counts["now"])
        with lock:
            counts["now"] -= 1
            if counts["all"] == 500:
                over.set()

    with ThreadPoolExecutor(8) as threads:
        slots = Slots(threads, 3)
        for _ in range(500):
            slots.submit(job)
        assert over.wait(30)
    assert counts["most"] <= 3
