"""What threads ask a member of a group while its event loop takes partitions and lets them go."""

from __future__ import annotations

from typing import Any

from ledgermq.client.groups.holding.holding import Phase
from ledgermq.client.groups.membership.holdings import Holdings


class Disturbing:
    """A holding that has another one taken while it is looked at, as the event loop may do in its thread."""

    phase = Phase.LOADING
    reading = object()

    def __init__(self, held: dict[int, Any]) -> None:
        self._held = held

    @property
    def kept(self) -> bool:
        self._held[len(self._held)] = Disturbing(self._held)
        return False


def test_holdings_may_change_while_another_thread_asks() -> None:
    held: dict[int, Any] = {}
    held[0] = Disturbing(held)
    holdings = Holdings.__new__(Holdings)
    holdings.held = held
    assert holdings.readable == []
    assert len(held) == 2
    assert holdings.loaded
    assert len(held) == 4
