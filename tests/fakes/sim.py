"""A scheduler at work without an engine: requests of so many tokens, one step a tick."""

from dataclasses import dataclass
from itertools import count

from omlx.engine.admission import Admission, Sizes
from omlx.engine.request import RequestClass
from omlx.engine.scheduler import Limits, Scheduler
from omlx.engine.turns import Stage


@dataclass
class Job:
    """A request and how far it is."""

    id: str
    request_class: RequestClass
    tenant: str
    prompt: int
    answer: int
    arrived: float
    left: int = 0
    decoded: int = 0
    admitted: float | None = None
    ended: float | None = None
    num_preemptions: int = 0


class Sim:
    """Prompts compute `room` tokens a tick in all, rows that decode one each; all is preempted as
    the loop does it."""

    def __init__(
        self,
        limits: Limits,
        *,
        room: int = 64,
        sizes: Sizes | None = None,
        limit_bytes: int = 1 << 60,
    ) -> None:
        self.now = 0.0
        self.sizes = sizes or Sizes()
        self.admission = Admission(self.sizes, limit_bytes)
        self.scheduler = Scheduler(limits, lambda: self.now, self.admission.fits)
        self.room = room
        self.jobs: dict[str, Job] = {}
        self.live: dict[str, Job] = {}
        self.order: list[Job] = []
        self.served: dict[str, int] = {}
        self.ids = count()

    def submit(
        self,
        prompt: int = 10,
        answer: int = 1,
        request_class: RequestClass = RequestClass.NORMAL,
        tenant: str = "",
    ) -> Job | None:
        """Queue a request; None if it is refused."""
        name = f"j{next(self.ids)}"
        if self.admission.refusal(prompt):
            return None
        if not self.scheduler.enqueue(name, request_class, tenant=tenant, num_tokens=prompt):
            return None
        job = Job(name, request_class, tenant, prompt, answer, self.now, left=prompt - 1)
        self.jobs[name] = self.live[name] = job
        return job

    def waiting(self, tenant: str) -> int:
        return sum(
            job.tenant == tenant
            and self.scheduler.stage(job.id) in (Stage.WAITING, Stage.PREEMPTED)
            for job in self.live.values()
        )

    def in_work(self) -> list[Job]:
        queued = (Stage.WAITING, Stage.PREEMPTED)
        return [job for job in self.live.values() if self.scheduler.stage(job.id) not in queued]

    def held_bytes(self) -> int:
        """What the model and the rows in work hold: a batch is padded, in steps of 256 tokens."""
        lengths = self.scheduler.lengths()
        longest = max(lengths, default=0)
        row = self.sizes.row + self.sizes.token * (longest + -longest % 256)
        return self.sizes.weights + len(lengths) * row

    def tick(self) -> None:
        """One step of a second."""
        self.now += 1.0
        victim = self.scheduler.victim()
        if victim is None and not self.admission.fits(self.scheduler.lengths()):
            victim = self.scheduler.last_come()
        if victim is not None:
            job = self.live[victim]
            job.num_preemptions += 1
            self.scheduler.preempt(victim, job.prompt + job.decoded)
        for name in self.scheduler.admit():
            job = self.live[name]
            self.order.append(job)
            job.admitted = self.now if job.admitted is None else job.admitted
            self.scheduler.loaded(name, job.left + 1)
        self._prefill()
        for job in list(self.live.values()):
            if self.scheduler.stage(job.id) is Stage.DECODING:
                self._decode(job)

    def _prefill(self) -> None:
        room = self.room
        for name in self.scheduler.choose(room):
            job = self.live[name]
            size = min(job.left, room)
            room -= size
            job.left -= size
            self._serve(job, size)
            self.scheduler.computed({name: job.left})
            if not job.left:
                self._serve(job, 1)
                self.scheduler.decoding(name)

    def _decode(self, job: Job) -> None:
        job.decoded += 1
        self._serve(job, 1)
        self.scheduler.decoded(job.id)
        if job.decoded == job.answer:
            self.scheduler.remove(job.id)
            job.ended = self.now
            del self.live[job.id]

    def _serve(self, job: Job, num_tokens: int) -> None:
        self.served[job.tenant] = self.served.get(job.tenant, 0) + num_tokens

    def until_idle(self, limit: int = 100_000) -> None:
        """Take ticks until every request has ended."""
        for _ in range(limit):
            if not self.live:
                return
            self.tick()
        raise AssertionError(f"{len(self.live)} requests do not end")
