"""The counters and histograms that requests move, under the names that Prometheus sees.

Knows nothing about requests: what is counted is told by plain values. Any thread may use it.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

from omlx.server.figures import TokenTotals
from omlx.server.labels import Labels

NUM_MODELS = 32
NUM_CLIENTS = 32
NUM_KEYS = 64
_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# Parts of a time are shorter than the whole.
_PART_SECONDS = (0.001, 0.0025, 0.005, 0.01, *_SECONDS)
_GAP_SECONDS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 10)
_TOKENS = (64, 256, 512, 1000, 2000, 4000, 10_000, 20_000, 50_000, 100_000)


class Instruments:
    """What one server counts; the label of a model is chosen by `models`."""

    def __init__(self, registry: CollectorRegistry, models: Labels) -> None:
        self._registry = registry
        self._models = models
        self._clients = Labels(NUM_CLIENTS, empty="unknown")
        self._keys = Labels(NUM_KEYS, empty="(none)")
        self._requests = self._counter("requests", "Requests by outcome", "model", "outcome")
        self._errors = self._counter("errors", "Errors sent to clients", "status")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens", "model")
        self._cached = self._counter(
            "cached_prompt_tokens", "Prompt tokens from the cache", "model", "tier"
        )
        self._generated = self._counter("generated_tokens", "Generated tokens", "model")
        self._tokens = self._counter(
            "tokens", "Tokens of requests that are over, by where they came from", "model", "kind"
        )
        self._by_client = self._counter(
            "client_tokens", "The same tokens by the client that asked", "client", "kind"
        )
        self._by_key = self._counter(
            "key_tokens", "The same tokens by the name of the API key", "key", "kind"
        )
        self._changes = self._counter(
            "prompt_changes", "What gave prompts a stable form", "model", "rule"
        )
        self._rerenders = self._counter(
            "idle_rerenders", "Next prompts computed while clients run tools", "model", "outcome"
        )
        self._rerendered = self._counter(
            "idle_rerendered_tokens", "Tokens of them that were not cached", "model"
        )
        self._written = self._counter(
            "disk_written_bytes", "Bytes written to the disk tier by engines", "model"
        )
        self._evicted = self._counter(
            "disk_evicted_bytes", "Bytes of files evicted from the disk tier by engines", "model"
        )
        self._ttft_s = self._seconds("ttft_seconds", "From arrival to the first token")
        self._queue_s = self._seconds("queue_seconds", "From arrival to admission")
        self._request_s = self._seconds("request_seconds", "From arrival to the end")
        self._gap_s = self._histogram(
            "itl_seconds", "Between two tokens of an answer", _GAP_SECONDS, "model"
        )
        self._part_s = self._histogram(
            "ttft_part_seconds",
            "What the first token waited for; the parts sum to ttft_seconds",
            _PART_SECONDS,
            "model",
            "part",
        )
        self._uncached = self._histogram(
            "turn_uncached_tokens", "Prompt tokens of a turn not in the cache", _TOKENS, "client"
        )

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"omlx_{name}", help_text, labels, registry=self._registry)

    def _seconds(self, name: str, help_text: str) -> Histogram:
        return self._histogram(name, help_text, _SECONDS, "model")

    def _histogram(
        self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"omlx_{name}", help_text, labels, registry=self._registry, buckets=buckets
        )

    def admitted(self, model: str, prompt: int, memory: int, disk: int) -> None:
        """A prompt left the queue with so many tokens from each tier (mutates)."""
        model = self._models.of(model)
        self._prompt.labels(model).inc(prompt)
        self._cached.labels(model, "memory").inc(memory)
        self._cached.labels(model, "disk").inc(disk)

    def turn(self, client: str, num_uncached: int) -> None:
        """A client's prompt left the queue with so many tokens that are not cached (mutates)."""
        self._uncached.labels(self._clients.of(client)).observe(num_uncached)

    def closed(self, model: str, outcome: str) -> None:
        """A request is over (mutates)."""
        self._requests.labels(self._models.of(model), outcome).inc()

    def spent(self, model: str, client: str, key: str, tokens: TokenTotals) -> None:
        """The tokens of a request that is over (mutates)."""
        model, client, key = self._models.of(model), self._clients.of(client), self._keys.of(key)
        self._generated.labels(model).inc(tokens.generated)
        for kind, num in tokens.by_kind().items():
            self._tokens.labels(model, kind).inc(num)
            self._by_client.labels(client, kind).inc(num)
            self._by_key.labels(key, kind).inc(num)

    def waited(self, model: str, queue_s: float | None, ttft_s: float | None) -> None:
        """What a request waited for its place, and for its first token (mutates)."""
        model = self._models.of(model)
        if queue_s is not None:
            self._queue_s.labels(model).observe(queue_s)
        if ttft_s is not None:
            self._ttft_s.labels(model).observe(ttft_s)

    def took(self, model: str, whole_s: float | None, parts_s: Mapping[str, float]) -> None:
        """How long a request took, and the parts of its TTFT (mutates)."""
        model = self._models.of(model)
        if whole_s is not None:
            self._request_s.labels(model).observe(whole_s)
        for part, seconds in parts_s.items():
            self._part_s.labels(model, part).observe(seconds)

    def gap(self, model: str, seconds: float) -> None:
        """A token came so long after the one before (mutates)."""
        self._gap_s.labels(self._models.of(model)).observe(seconds)

    def changed(self, model: str, changes: Mapping[str, int]) -> None:
        """A prompt was given a stable form (mutates)."""
        for rule, num in changes.items():
            self._changes.labels(self._models.of(model), rule).inc(num)

    def rerendered(self, model: str, outcome: str, num_tokens: int) -> None:
        """A next prompt was computed, with so many tokens that were not cached (mutates)."""
        model = self._models.of(model)
        self._rerenders.labels(model, outcome).inc()
        if num_tokens:
            self._rerendered.labels(model).inc(num_tokens)

    def error_sent(self, status: int) -> None:
        """A request got an error as its answer, or as the end of one (mutates)."""
        self._errors.labels(str(status)).inc()

    def moved(self, model: str, written: int, evicted: int) -> None:
        """An engine has written and evicted so many bytes (mutates)."""
        model = self._models.of(model)
        self._written.labels(model).inc(written)
        self._evicted.labels(model).inc(evicted)
