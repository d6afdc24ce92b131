"""The troubles that a check plans for the calls of a client, as plain values, and the order in which calls meet
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from ledgermq.errors import LedgerMQError


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer is this error; the broker never sees the request."""

    error: LedgerMQError


@dataclass(frozen=True, slots=True)
class LostRequest:
    """The call ends without an error of LedgerMQ, as if the line broke; the broker never sees the request. `status`:
    what the library, or a proxy, makes of that.
    """

    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class LostAnswer:
    """The broker serves the request; then the call ends as if the line broke. `status`: as of `LostRequest`."""

    status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Twice:
    """The broker gets the request twice, as from a network that repeats it; the second answer counts."""


@dataclass(frozen=True, slots=True)
class Late:
    """The answer comes so much later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The answer is NOT_OWNER, and names the other broker; the broker never sees the request."""


@dataclass(frozen=True, slots=True)
class Stale:
    """DescribeTopics names the other broker as the owner of each partition, as a broker does that has not heard yet."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """One byte of the records that come differs: the last one of the first `text` in them."""

    text: bytes


Fault = Refused | LostRequest | LostAnswer | Twice | Late | Elsewhere | Stale | Damaged

UNARY_OF = {"Produce": "ProduceOnce", "Fetch": "FetchOnce"}
"""A stream meets the faults of the call that carries the same messages."""


class Plan:
    """`faults`: by method, what its calls meet, one after the other; None: nothing. Later calls meet nothing.
    Requests of a stream count as calls.
    """

    def __init__(self, faults: Mapping[str, Sequence[Fault | None]] | None = None) -> None:
        self._left = {method: deque(of_method) for method, of_method in (faults or {}).items()}

    def next(self, method: str) -> Fault | None:
        """Return what the next call of the method meets."""
        left = self._left.get(UNARY_OF.get(method, method))
        return left.popleft() if left else None

    def put_back(self, method: str, fault: Fault) -> None:
        """Keep a fault for the next call, as this one gave it nothing to do."""
        self._left[UNARY_OF.get(method, method)].appendleft(fault)

    @property
    def left(self) -> int:
        """Return how many faults no call has met."""
        return sum(fault is not None for of_method in self._left.values() for fault in of_method)
