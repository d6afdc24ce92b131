"""Calls to the coordinator of one group, or of one transactional id, at its present address.

Any other broker answers NOT_OWNER and names the coordinator. Invariants: the address is only a
cache, brokers decide; a call ends within its deadline, with an answer or a typed error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ledgermq.client.connection.connections import Connections
from ledgermq.errors import DeadlineExceeded, LedgerMQError, NotOwner, ResourceExhausted, RetriableError, Unavailable
from ledgermq.protocol.api import Connection

T = TypeVar("T")


class Coordinator:
    """`whose`: what it coordinates, for the texts of errors."""

    def __init__(self, connections: Connections, whose: str) -> None:
        self.connections = connections
        self._whose = whose
        self.address: str | None = None
        """Address of the broker that answered last."""

    async def ask(self, call: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        """Call, and retry errors that may pass until the deadline. Then raise Unavailable, with
        the last error in its text.
        """
        backoff = self.connections.backoff()
        while True:
            try:
                return await self.ask_once(call, deadline)
            except RetriableError as error:
                wait_s = backoff.next_s(error.retry_after_ms)
                if asyncio.get_running_loop().time() + wait_s < deadline:
                    await asyncio.sleep(wait_s)
                    continue
                if isinstance(error, ResourceExhausted):
                    raise
                raise Unavailable(
                    f"the coordinator of {self._whose} did not answer in time: {error.message}"
                ) from error

    async def ask_once(self, call: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        """Try once; try twice if a broker names another one.

        Raises NotOwner when there is no coordinator at present.
        """
        if self.address is None:
            return await self._ask_any(call, deadline)
        address, self.address = self.address, None
        try:
            answer = await self.connections.ask_at(address, call, deadline)
        except NotOwner as error:
            if not error.owner or error.owner == address:
                raise
            return await self._ask_named(error.owner, call, deadline)
        except (Unavailable, DeadlineExceeded):
            if asyncio.get_running_loop().time() >= deadline:
                raise
            return await self._ask_any(call, deadline, avoid=address)
        except LedgerMQError:
            self.address = address  # it answers, so it is remembered
            raise
        self.address = address
        return answer

    async def _ask_any(
        self, call: Callable[[Connection], Awaitable[T]], deadline: float, avoid: str | None = None
    ) -> T:
        await self.connections.ready()
        error: RetriableError = Unavailable("no broker address is known")
        for address in self.connections.candidates(avoid):
            try:
                return await self._ask_named(address, call, deadline)
            except (Unavailable, DeadlineExceeded) as unreachable:
                error = unreachable
            except NotOwner as elsewhere:
                if not elsewhere.owner or elsewhere.owner in (address, avoid):
                    raise
                self.connections.learn(elsewhere.owner)
                return await self._ask_named(elsewhere.owner, call, deadline)
            if asyncio.get_running_loop().time() >= deadline:
                break
        raise error

    async def _ask_named(self, address: str, call: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        self.connections.learn(address)
        try:
            answer = await self.connections.ask_at(address, call, deadline)
        except RetriableError:
            raise
        except LedgerMQError:
            self.address = address
            raise
        self.address = address
        return answer
