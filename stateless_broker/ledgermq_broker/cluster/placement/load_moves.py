"""Decide when this broker hands over a bundle for load. Pure: times are passed in.

Only the owner of a bundle decides that it moves, and it announces to whom (`promised` in its
heartbeat). So the broker that takes it needs no equal view of the loads. A move begins when the
same broker has been too busy for `wait_s`; the time begins again after each other change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ledgermq_broker.cluster.heartbeat import Heartbeat
from ledgermq_broker.cluster.placement.bundles import Relief


def promised_in(present: Mapping[str, Heartbeat], owners: Mapping[int, str], live: Collection[str]) -> dict[int, str]:
    """Return the promises in force: from brokers whose bundle no other broker has taken, to live brokers."""
    return {
        bundle: broker
        for name, heartbeat in sorted(present.items())
        for bundle, broker in heartbeat.promised.items()
        if broker in live and owners.get(bundle, name) == name
    }


class LoadMoves:
    def __init__(self, me: str) -> None:
        self._me = me
        self._busy_since: float | None = None
        self._begun: dict[int, tuple[str, float]] = {}

    @property
    def promised(self) -> dict[int, str]:
        return {bundle: broker for bundle, (broker, _) in self._begun.items()}

    def is_due(self, wish: Relief | None, owners: Mapping[int, str], now: float, wait_s: float) -> bool:
        """Return whether this broker has been too busy for long enough. `wish`: the relief that the present
        loads ask for.
        """
        if wish is None or owners[wish.bundle] != self._me:
            self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        return self._busy_since is not None and now - self._busy_since >= wait_s

    def begin(self, wish: Relief, now: float) -> None:
        self._begun[wish.bundle] = (wish.broker, now)
        self._busy_since = None

    def forget_ended(
        self, owners: Mapping[int, str], live: Collection[str], is_busy: Callable[[int], bool], before: float
    ) -> None:
        """Forget promises that another broker has fulfilled, that the store refused, that were made to a broker
        that is gone, or that were made before `before`: others may have the bundle then.
        """
        for bundle, (broker, begun_at) in list(self._begun.items()):
            owner = owners.get(bundle)
            is_over = owner is not None if not is_busy(bundle) else owner not in (None, self._me)
            if is_over or broker not in live or begun_at < before:
                del self._begun[bundle]
