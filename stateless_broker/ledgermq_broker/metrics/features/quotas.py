"""Count what quotas refuse and hold back, by principal and limit.

The first `PRINCIPALS_MAX` principals that reach a limit have their own series; all others share one.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from ledgermq_broker.access.quota_counts import QuotaCounts

PRINCIPALS_MAX = 100
OTHERS = "others"
NAME_CHARS_MAX = 100


class QuotaMetrics(QuotaCounts):
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"ledgermq_quota_{name}", text, ("principal", "limit"), registry=registry)

        self._refused = counter(
            "refusals", "Calls, and frames of streams, that were refused because a principal had reached its quota"
        )
        self._held = counter("answers_held", "Answers that were held back because a principal had reached its quota")
        self._held_seconds = counter("held_seconds", "Time for which answers were held back because of quotas")
        self._principals: set[str] = set()

    def refused(self, principal: str, limit: str) -> None:
        self._refused.labels(self._shown(principal), limit).inc()

    def held(self, principal: str, limit: str, seconds: float) -> None:
        shown = self._shown(principal)
        self._held.labels(shown, limit).inc()
        self._held_seconds.labels(shown, limit).inc(seconds)

    def _shown(self, principal: str) -> str:
        if principal in self._principals:
            return principal[:NAME_CHARS_MAX]
        if len(self._principals) >= PRINCIPALS_MAX:
            return OTHERS
        self._principals.add(principal)
        return principal[:NAME_CHARS_MAX]
