"""Connections to brokers, one per broker, and calls that any broker can answer.

Invariants: a call ends within its deadline with an answer or a typed error; the number of known
brokers is bounded; a broker that does not answer is tried last next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from datetime import datetime
from typing import Any, Protocol, TypeVar

from ledgermq.client.connection.home import Home
from ledgermq.client.messages.record import datetime_of
from ledgermq.client.settings.values import ClientSettings
from ledgermq.errors import (
    Closed,
    DeadlineExceeded,
    InvalidConfig,
    LedgerMQError,
    NotOwner,
    ResourceExhausted,
    RetriableError,
    TlsFailed,
    Unavailable,
)
from ledgermq.protocol.api import Connection, Connector
from ledgermq.protocol.methods import Calls, Method
from ledgermq.runtime.backoff import Backoff
from ledgermq.sources import Sources

T = TypeVar("T")

LEARNED_BROKERS_MAX = 64
FIRST_RESET_S = 0.5
"""A call on a line that several callers share is reset at the earliest after so long; brokers count 0.2 s as early."""
OPEN_MAX = 256


class Brokers(Protocol):
    """Knows the brokers of a client that was given no addresses."""

    def open(self) -> Awaitable[Sequence[str]]:
        """Start what has to be started, and return the addresses. Raises the errors of starting it, Closed."""
        ...


class Connections:
    """`threads`: executor of work that need not block the loop; None, as in a simulation: such
    work runs in place. `embedding`: says, and starts if need be, to which brokers they lead.
    """

    def __init__(
        self,
        connector: Connector,
        bootstrap: Sequence[str],
        settings: ClientSettings,
        sources: Sources,
        threads: Executor | None = None,
        embedding: Brokers | None = None,
    ) -> None:
        if not bootstrap:
            raise InvalidConfig("no broker address given")
        self._connector = connector
        self._bootstrap = list(dict.fromkeys(bootstrap))
        self._learned: dict[str, None] = {}
        self._open: dict[str, Connection] = {}
        self._settings = settings
        self._sources = sources
        self.threads = threads
        self._embedding = embedding
        self.home = Home()
        self._last_good: str | None = None
        self._in_trouble = False
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise Closed after `close`."""
        if self._closed:
            raise Closed("the client is closed: make another one with ledgermq.connect")

    def at(self, address: str) -> Connection:
        self.check_open()
        connection = self._open.pop(address, None) or self._connector.connect(address)
        self._open[address] = connection  # the last of the dict is the one used most recently
        return connection

    def learn(self, address: str) -> None:
        """Add a broker that another broker named; it is tried when those given by the user do not
        answer.
        """
        if address and address not in self._bootstrap and address not in self._learned:
            self._learned[address] = None
            if len(self._learned) > LEARNED_BROKERS_MAX:
                del self._learned[next(iter(self._learned))]

    @property
    def attempt_timeout_s(self) -> float:
        return self._settings.attempt_timeout_s

    def now(self) -> datetime:
        """Return the time of day, from which ages are counted back."""
        return datetime_of(self._sources.now_us())

    def backoff(self) -> Backoff:
        return Backoff(self._sources, self._settings.backoff_ms_first / 1000, self._settings.backoff_ms_max / 1000)

    def deadline(self, timeout_s: float | None = None) -> float:
        """Return the deadline of a call, a time of the loop's clock.

        Raises UsedElsewhere, Closed; this is where every call checks its home, because each call computes
        its deadline first.
        """
        self.home.check()
        self.check_open()
        return asyncio.get_running_loop().time() + (self._settings.timeout_s if timeout_s is None else timeout_s)

    async def ready(self) -> None:
        """Start the embedded broker if there is one; only then `candidates` are addresses. Raises the errors of
        starting one.
        """
        if self._embedding is not None:
            self._bootstrap = list(await self._embedding.open())

    async def ask_at(self, address: str, call: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        """Make one attempt. Raises DeadlineExceeded after the time of one attempt, or at the
        deadline.
        """
        await self._close_unused()
        until = min(deadline, asyncio.get_running_loop().time() + self._settings.attempt_timeout_s)
        try:
            async with asyncio.timeout_at(until):
                answer = await call(self.at(address))
        except TimeoutError as error:
            late = DeadlineExceeded(f"{address} did not answer in time")
            self._report(late)
            raise late from error
        except LedgerMQError as error:
            self._report(error if error.retriable else None)
            raise
        self._report(None)
        return answer

    def _report(self, trouble: LedgerMQError | None) -> None:
        """Report each failed attempt, and the first success after one."""
        if self._settings.on_trouble is not None and (trouble is not None or self._in_trouble):
            self._settings.on_trouble(trouble)
        self._in_trouble = trouble is not None

    async def _close_unused(self) -> None:
        """Close the connections that were unused for longest, because brokers come and go under
        new addresses. A caller that still streams over a closed connection opens another.
        """
        while len(self._open) > OPEN_MAX:
            await self._open.pop(next(iter(self._open))).close()

    async def ask(self, call: Callable[[Connection], Awaitable[T]], deadline: float, *, avoid: str | None = None) -> T:
        """Return the answer of any broker, or of the one that it redirects to; `avoid` is tried
        last.

        Errors that a retry may cure are retried until the deadline; then raises Unavailable, or
        ResourceExhausted if that was the last answer. Raises TlsFailed at once if TLS fails with every
        broker and no broker has ever answered: a setting is wrong. Later it may be a certificate that
        is renewed soon.
        """
        await self.ready()
        backoff = self.backoff()
        refusal: ResourceExhausted | None = None
        while True:
            wait_ms: int | None = None
            last: RetriableError | None = None
            candidates, failed_by_tls = self.candidates(avoid), 0
            for address in candidates:
                try:
                    return await self._ask_redirected(address, call, deadline)
                except (Unavailable, DeadlineExceeded) as error:
                    last = error
                    failed_by_tls += isinstance(error, TlsFailed)
                except (NotOwner, ResourceExhausted) as error:
                    last, wait_ms = error, error.retry_after_ms
                    refusal = error if isinstance(error, ResourceExhausted) else None
                    break
                if asyncio.get_running_loop().time() >= deadline:
                    last = refusal or last  # the deadline cut this attempt off, which proves nothing
                    break
                refusal = None
            if last is not None and self._last_good is None and failed_by_tls == len(candidates):
                raise last
            if not await backoff.pause(wait_ms, deadline):
                if isinstance(last, ResourceExhausted | TlsFailed):
                    raise last
                raise Unavailable(
                    f"no broker of {', '.join(self.candidates())} answered in time; the last error: {last}"
                ) from last

    async def _ask_redirected(self, address: str, call: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        try:
            answer = await self.ask_at(address, call, deadline)
        except NotOwner as error:
            if not error.owner or error.owner == address:
                raise
            self.learn(error.owner)
            return await self.ask_at(error.owner, call, deadline)
        self._last_good = address
        return answer

    def candidates(self, avoid: str | None = None) -> list[str]:
        """Return all known brokers: first the one that answered last, and at the end the one to
        avoid.
        """
        return sorted(
            [*self._bootstrap, *self._learned], key=lambda address: (address == avoid, address != self._last_good)
        )

    async def close(self) -> None:
        self.home.check()
        self._closed = True
        connections, self._open = list(self._open.values()), {}
        for connection in connections:
            await connection.close()


class CallerConnector:
    """Opens connections of a view of a client (`Client.as_caller`) over the client's lines. `credential`: what each of
    its calls carries, whichever task makes the call and whenever: it is a field, and no context variable.
    """

    def __init__(self, shared: Connections, credential: str) -> None:
        self._shared = shared
        self._credential = credential

    async def open(self) -> Sequence[str]:
        """Return the brokers that the client knows now. Raises Closed, and the errors of starting one."""
        self._shared.check_open()
        await self._shared.ready()
        return self._shared.candidates()

    def connect(self, address: str) -> Connection:
        return CallerConnection(self._shared, address, self._credential)

    def proving(self, credential: Callable[[str], str]) -> Connector:
        """See `Connector.proving`; what these connections carry is settled."""
        return self

    async def close(self) -> None:
        """Close nothing: the lines are the client's."""


def _seen(call: asyncio.Task[Any]) -> None:
    """Look at the error of a call whose caller is gone, so that the loop does not report it."""
    if not call.cancelled():
        call.exception()


class CallerConnection(Calls, Connection):
    """The client's line to an address, found for each call: the client closes lines that it does not use.

    A call that its caller cancels at once goes on for a moment. Brokers take calls that are reset so early for a
    flood of their line (rapid reset), and break it: then one caller would cut off all others.
    """

    def __init__(self, shared: Connections, address: str, credential: str) -> None:
        self.address = address
        self._shared = shared
        self._credential = credential

    def _line(self) -> Connection:
        return self._shared.at(self.address).as_caller(self._credential)

    async def ask(self, method: Method, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + FIRST_RESET_S
        call = asyncio.create_task(self._asked(method, request), name="a call on a shared line")
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            call.add_done_callback(_seen)
            loop.call_at(until_s, call.cancel)
            raise

    async def _asked(self, method: Method, request: Any) -> Any:
        return await getattr(self._line(), method.attribute)(request)

    async def stream(self, method: Method, requests: Any) -> AsyncIterator[Any]:
        async with aclosing(getattr(self._line(), method.attribute)(requests)) as answers:
            async for answer in answers:
                yield answer

    def as_caller(self, credential: str) -> Connection:
        return CallerConnection(self._shared, self.address, credential)

    def credential(self) -> str:
        return self._credential

    async def wait_lost(self) -> bool:
        return await self._shared.at(self.address).wait_lost()

    async def close(self) -> None:
        """Close nothing: the line is the client's."""
