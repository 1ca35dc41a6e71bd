"""Metrics of the server itself, read when they are asked for.

Knows nothing about engines or how requests are counted.
"""

import time
from collections.abc import Callable, Iterator

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omlx import __version__
from omlx.server.figures import Totals
from omlx.server.labels import Labels


class ServerCollector(Collector):
    """What the server says of itself; `num_lost` is how many requests the journal lacks."""

    def __init__(
        self, totals: Callable[[], Totals], models: Labels, num_lost: Callable[[], int]
    ) -> None:
        self._totals = totals
        self._models = models
        self._num_lost = num_lost
        self._process = psutil.Process()
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        totals = self._totals()
        yield GaugeMetricFamily("omlx_active_requests", "Requests not over", totals.active)
        yield GaugeMetricFamily("omlx_waiting_requests", "Requests in a queue", totals.waiting)
        yield self._hit_rates(totals)
        yield CounterMetricFamily(
            "omlx_journal_lost_rows", "Requests that the journal lacks", self._num_lost()
        )
        yield GaugeMetricFamily(
            "omlx_server_resident_bytes",
            "Memory of the server process, without its engines",
            self._process.memory_info().rss,
        )
        yield GaugeMetricFamily(
            "omlx_start_time_seconds", "When the server started, since 1970", self._started
        )
        info = GaugeMetricFamily("omlx_build_info", "1; its version", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _hit_rates(self, totals: Totals) -> Metric:
        """Cached per prompt tokens of requests that are over, 0..1; a model without is left out."""
        prompts, cached = dict[str, int](), dict[str, int]()
        for model_id, tokens in totals.tokens.items():
            model = self._models.known(model_id)
            prompts[model] = prompts.get(model, 0) + tokens.prompt
            found = tokens.cached_memory + tokens.cached_disk
            cached[model] = cached.get(model, 0) + found
        rates = GaugeMetricFamily(
            "omlx_cache_hit_rate", "Cached per prompt tokens since the start", labels=["model"]
        )
        for model, num in prompts.items():
            if num:
                rates.add_metric([model], cached[model] / num)
        return rates
