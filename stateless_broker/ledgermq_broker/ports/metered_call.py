"""Follow one call of the gRPC server from its headers to its end: its meters, the ids of its log lines,
what it counts for its sharer and its account, and whether it was in vain.
"""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Any, Self

import grpc.aio

from ledgermq.errors import Unauthenticated
from ledgermq.protocol.methods import FETCH, FETCH_ONCE, METHODS, Method
from ledgermq_broker.access.state.usage import Account
from ledgermq_broker.access.wrappers.throttled import NEVER_REFUSED, refusal_of
from ledgermq_broker.admission.calls import CallShares, Floods, host_of
from ledgermq_broker.admission.connection_cut import ConnectionCut
from ledgermq_broker.admission.connections import ConnectedCaller, Connections
from ledgermq_broker.bundle.shared.budgets import CALLER, Caller
from ledgermq_broker.costs.racks import Traffic
from ledgermq_broker.logs import follow_call
from ledgermq_broker.ports.call_meter import CANCELLED, OK, CallMeter

URGENT_METHODS = frozenset(
    method.name for method in METHODS if method.attribute in NEVER_REFUSED and not method.is_long_poll
)
"""Short calls that free what others could use, or end an overload. A heartbeat is held, so it counts as others."""
RESET_S = 0.2
"""A call that its caller ends earlier than this, before an answer, counts as reset."""

Context = grpc.aio.ServicerContext[bytes, bytes]

_connection_cut = ConnectionCut()
_flood_cut = ConnectionCut("connections were broken whose calls are refused or reset again and again")


class MeteredCall:
    """Meter one call from begin to end, whatever the outcome. Lines logged meanwhile carry its ids."""

    _numbers = itertools.count(1)

    def __init__(self, meter: CallMeter, shares: CallShares, floods: Floods, method: str, context: Context) -> None:
        self._meter = meter
        self._shares = shares
        self._floods = floods
        self._method = method
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self.code: str | None = None
        self.connection = context.peer()
        self.source = ""
        """The principal; "" for a caller that was not admitted, or proved nothing."""
        self.traffic = Traffic()
        """Counts the bytes of its requests and answers; by itself until the caller is admitted, and for brokers."""
        self.sharer = ""
        self.takes_turns_as = ""
        """Principal or host; "" for a broker, which does not wait."""
        self._account: Account | None = None
        self._caller: ConnectedCaller | None = None
        self._connections: Connections | None = None
        self._ids = follow_call(connection=self.connection, request=next(self._numbers), method=method)
        if method in (FETCH.name, FETCH_ONCE.name):
            _follow_answers(context)

    def follow(self, **ids: object) -> None:
        self._ids.update(ids)

    def begin_share(self, sharer: str, *, is_broker: bool = False) -> None:
        """Count the call while it lasts. Raises ResourceExhausted if its sharer has too many."""
        self._shares.begin(sharer, is_broker=is_broker)
        self.sharer = sharer

    def count_for(self, account: Account) -> None:
        """Count the call and its connection while it lasts. Raises ResourceExhausted if the account may not
        have another one.
        """
        excess = account.full(self.connection, self._loop.time(), is_urgent=self._method in URGENT_METHODS)
        if excess is not None:
            raise refusal_of(excess)
        account.begin_call(self.connection)
        self._account = account

    def list_in(self, connections: Connections, principal: str, client_id: str, client: str) -> None:
        """Let the call be seen in the list of connections."""
        self._connections = connections
        self._caller = connections.begin_call(self.connection, principal, client_id, client)

    def note(self, method: Method, request: Any) -> None:
        """Note what the caller writes and reads."""
        if self._caller is not None:
            self._caller.note(method.attribute, request)

    def __enter__(self) -> Self:
        self._meter.begun(self._method)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.code or (OK if error is None else CANCELLED)
        now_s = self._loop.time()
        self._meter.ended(self._method, code, now_s - self._begun_s)
        self._ids.clear()
        if self.sharer:
            self._shares.end(self.sharer)
        if self._account is not None:
            self._account.end_call(self.connection)
        if self._caller is not None and self._connections is not None:
            self._caller.end_call(self._connections.now_ms())
        is_reset = code == CANCELLED and now_s - self._begun_s < RESET_S
        if (is_reset or code == Unauthenticated.code) and self._floods.note(
            self.connection, self.source or host_of(self.connection), now_s
        ):
            _flood_cut.cut(self.connection)


def _follow_answers(context: Context) -> None:
    """Keep what the call holds of the broker's budget for answers until gRPC is done with the call."""
    peer = context.peer()
    caller = Caller(peer, lambda: _connection_cut.cut(peer))
    context.add_done_callback(lambda _: caller.ended())  # type: ignore[arg-type]  # the stubs forget that it gets the context
    CALLER.set(caller)
