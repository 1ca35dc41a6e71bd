"""Which tenant comes next, so that each has the same share of the tokens that are computed.

Knows nothing about requests, classes or time. Deficit round robin in the form that needs no rounds:
a tenant's deficit is what it has had, and the one that has had least comes next.
"""


class Shares:
    """Tokens by tenant; one without work saves nothing up, and its debt is not forgotten."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}
        self._served: dict[str, int] = {}
        self._num_requests: dict[str, int] = {}
        self._level = 0.0  # what a tenant with work all the time would have had
        self._turn = 0

    def enter(self, tenant: str, *, is_waiting: bool) -> None:
        """One more request of a tenant; `is_waiting` if others of it wait already (mutates)."""
        if not self._num_requests:
            self._had.clear()
            self._served.clear()
            self._level = 0.0
        self._num_requests[tenant] = self._num_requests.get(tenant, 0) + 1
        if not is_waiting:
            self._had[tenant] = max(self._had.get(tenant, 0), self._level)

    def leave(self, tenant: str) -> None:
        """A request of a tenant is over (mutates)."""
        self._num_requests[tenant] -= 1
        if not self._num_requests[tenant]:
            del self._num_requests[tenant]
            paid = [t for t, had in self._had.items() if had <= self._level]
            for name in paid:
                if name not in self._num_requests:
                    del self._had[name]
                    self._served.pop(name, None)

    def serve(self, tenant: str) -> None:
        """A request of a tenant is admitted (mutates)."""
        self._turn += 1
        self._served[tenant] = self._turn

    def charge(self, tenant: str, num_tokens: int) -> None:
        """So many tokens are computed for a tenant; fewer than 0 were not needed (mutates)."""
        self._had[tenant] = self._had.get(tenant, 0) + num_tokens
        self._level += num_tokens / max(1, len(self._num_requests))

    def order(self, tenant: str) -> tuple[float, int]:
        """The smallest comes next: what it has had, then how long ago it was served."""
        return self._had.get(tenant, 0), self._served.get(tenant, 0)
