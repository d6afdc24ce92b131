"""Put something between a broker and those that it calls about bundles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ledgermq_broker.broker import Broker


class Called:
    """A broker that is called; all but what a subclass does is its own."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def stand_between(broker: Broker, between: Callable[[Any], Called]) -> None:
    """Let a broker's calls go through what `between` makes of each broker that it calls, itself included. Call it when
    the broker has started.
    """
    calls = broker.calls
    real = calls._broker

    def called(bundle: int, named: str) -> Any:
        address, api = real(bundle, named)
        return address, between(api)

    calls._broker = called
