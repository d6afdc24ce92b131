"""One request as its handler gets it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ledgermq.protocol.api import BrokerApi


@dataclass(frozen=True, slots=True)
class Asked:
    """`api`: that of the caller who was admitted. `client_host`: as Kafka shows it, with a slash."""

    api: BrokerApi
    message: Any
    version: int
    client_id: str = ""
    client_host: str = ""


Handler = Callable[[Asked], Awaitable[Any]]
"""Returns the answer: the API's response."""
