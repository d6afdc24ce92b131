"""Callers: for each credential its own view of the cluster, with its own connections' metadata, topic descriptions
and producer. Nothing that one caller opened serves another: a stream keeps the credential that opened it, and a
description shows what its caller may see.

Invariants: a caller is kept only after a broker has admitted its credential; brokers judge each later call again.
A caller with a call under way is not closed. The number of callers is bounded, in all and for each principal.
Credentials are examined in turns of the hosts that they come from.
Credentials that no broker has admitted yet travel on separate connections: brokers break those whose calls
are refused again and again, and strangers would cut off the callers that were admitted.

Where brokers admit every caller, all share one, with a credential of no principal: when rules are switched on, it is
refused, and each caller is examined by its own credential again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import ledgermq
from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq.client.producing.producer import Producer
from ledgermq.errors import LedgerMQError, Unauthenticated
from ledgermq.runtime.ports.turns import Turns
from ledgermq.runtime.process.log import get_log
from ledgermq.runtime.tasks import end, shared
from ledgermq_gateway.cluster.clock import ClusterClock
from ledgermq_gateway.http.limits import Held
from ledgermq_gateway.http.problems import Problem
from ledgermq_gateway.settings import GatewaySettings

NO_TOKEN = "anonymous"
"""Sent for a caller without a credential. A call without any would count as the owner of the gateway's certificate."""
REFUSED_S = 5.0
REFUSED_MAX = 10_000
ADMISSIONS_MAX = 16
ADMISSION_S_MAX = 10.0
"""A credential that has waited so long to be examined is refused for the moment."""
TOPIC_AGE_S = 10.0
TOPICS_MAX = 1_000
OPEN = "*"
"""The principal that brokers name where they admit every caller."""

_log = get_log("ledgermq.gateway")

Connect = Callable[[str], ledgermq.Client]
"""Return a view of the cluster whose calls carry this token (`ledgermq.Client.as_caller`)."""


class Caller:
    """The view of one credential. `principal`: the name that brokers gave it. `is_shared`: brokers admit every caller,
    and all are this one.
    """

    def __init__(
        self, client: ledgermq.Client, principal: str, settings: GatewaySettings, *, is_shared: bool = False
    ) -> None:
        self.client = client
        self.principal = principal
        self.is_shared = is_shared
        self.calls = 0
        self.unused = asyncio.Event()
        self.unused.set()
        self.used_s = asyncio.get_running_loop().time()
        self._settings = settings
        self._producer: Producer | None = None
        self._topics: OrderedDict[str, tuple[float, TopicDescription]] = OrderedDict()

    def begin(self) -> None:
        """Note that a call begins."""
        self.calls += 1
        self.unused.clear()

    def end(self) -> None:
        """Note that a call has ended."""
        self.calls -= 1
        self.used_s = asyncio.get_running_loop().time()
        if not self.calls:
            self.unused.set()

    @property
    def producer(self) -> Producer:
        if self._producer is None or self._producer.has_ended:
            self._producer = self.client.producer(
                delivery_timeout_s=self._settings.delivery_timeout_ms / 1000,
                when_full="fail",
                auto_create=False,
                raise_on_error=False,
            )
        return self._producer

    async def topic(self, name: str, *, anew: bool = False) -> TopicDescription:
        """Return a description that is at most some seconds old. Raises UnknownTopic, Unauthorized, Unavailable."""
        now_s = asyncio.get_running_loop().time()
        found = self._topics.get(name)
        if found is not None and not anew and now_s - found[0] < TOPIC_AGE_S:
            return found[1]
        self._topics.pop(name, None)
        described = await self.client.describe_topic(name)
        self._topics[name] = now_s, described
        if len(self._topics) > TOPICS_MAX:
            self._topics.popitem(last=False)
        return described

    def forget(self, topic: str) -> None:
        """Let the next call look the topic up again."""
        self._topics.pop(topic, None)

    async def close(self) -> None:
        with suppress(LedgerMQError):
            await self.client.close()


class Callers:
    """Admits callers, and closes those that no call has used for a while."""

    def __init__(self, connect: Connect, examine: Connect, settings: GatewaySettings, clock: ClusterClock) -> None:
        self._connect = connect
        self._examine = examine
        self._settings = settings
        self._clock = clock
        self._callers: OrderedDict[bytes, Caller] = OrderedDict()
        """By the digest of the credential; the last one was used most recently. Several may be the shared one."""
        self._refused: OrderedDict[bytes, tuple[float, LedgerMQError]] = OrderedDict()
        self._admissions: dict[bytes, asyncio.Task[Caller]] = {}
        self._turns = Turns(ADMISSIONS_MAX)
        self._shared: Caller | None = None
        self._closings: set[asyncio.Task[None]] = set()
        self.answered_s = float("-inf")
        """When a broker has last answered, by the loop's clock."""

    async def of(self, token: str, host: str, held: Held) -> Caller:
        """Return the caller of a token, "" for none, whose request comes from `host`. It has a call until `held` ends.
        Raises Unauthenticated, Unavailable, ResourceExhausted, Problem (503: too many).
        """
        digest = _digest(token)
        caller = self._callers.get(digest) or await self._admitted(digest, token, host)
        if digest in self._callers:
            self._callers.move_to_end(digest)
        caller.begin()
        held.add(partial(self._ended, caller))
        await self._clock.refresh(caller.client)
        return caller

    def _ended(self, caller: Caller, error: BaseException | None) -> None:
        if isinstance(error, Unauthenticated):
            self._forget(caller)
        caller.end()

    def principal_of(self, token: str) -> str:
        """Return the principal of a token, "" if it is not known, or brokers admit every caller. Asks no broker."""
        caller = self._callers.get(_digest(token))
        return "" if caller is None or caller.is_shared else caller.principal

    def __len__(self) -> int:
        return len(self._different())

    async def _admitted(self, digest: bytes, token: str, host: str) -> Caller:
        now_s = asyncio.get_running_loop().time()
        refused = self._refused.get(digest)
        if refused is not None and now_s - refused[0] < REFUSED_S:
            raise type(refused[1])(refused[1].message)
        task = self._admissions.get(digest)
        if task is None:
            task = asyncio.create_task(self._admit(digest, token, host), name="admit a caller")
            self._admissions[digest] = task
            task.add_done_callback(lambda done: self._admission_ended(digest, done))
        return await shared(task, "the admission of a caller")

    def _admission_ended(self, digest: bytes, task: asyncio.Task[Caller]) -> None:
        self._admissions.pop(digest, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Unauthenticated):
            self._refused[digest] = asyncio.get_running_loop().time(), error
            self._refused.move_to_end(digest)
            if len(self._refused) > REFUSED_MAX:
                self._refused.popitem(last=False)

    async def _admit(self, digest: bytes, token: str, host: str) -> Caller:
        async with self._turns.one(host, ADMISSION_S_MAX):
            async with self._examine(token or NO_TOKEN) as examined:
                decision = await examined.access.test("cluster")
                await self._clock.refresh(examined)
            self.answered_s = asyncio.get_running_loop().time()
            if decision.principal == OPEN:
                caller = self._shared_caller()
            else:
                self._make_room(decision.principal)
                caller = Caller(self._connect(token or NO_TOKEN), decision.principal, self._settings)
        self._callers[digest] = caller
        while len(self._callers) > self._settings.callers_max:  # of the shared one: the others are fewer
            del self._callers[next(each for each, found in self._callers.items() if found is self._shared)]
        return caller

    def _shared_caller(self) -> Caller:
        if self._shared is None:
            self._shared = Caller(self._connect(NO_TOKEN), "anonymous", self._settings, is_shared=True)
        return self._shared

    def _make_room(self, principal: str) -> None:
        """Close the callers that were unused for longest where a bound is reached. Raises Problem (503)."""
        different = self._different()
        for among, most in (
            ([each for each in different if each.principal == principal], self._settings.callers_per_principal_max),
            (different, self._settings.callers_max),
        ):
            if len(among) < most:
                continue
            unused = next((each for each in among if not each.calls), None)
            if unused is None:
                raise Problem("OVERLOADED", "too many credentials have calls under way: try again", retry_after_ms=1000)
            self._close(unused)

    def _different(self) -> list[Caller]:
        return list(dict.fromkeys(self._callers.values()))

    def _forget(self, caller: Caller) -> None:
        """A broker refuses the credential now: examine it again with the next call, by all that is known then."""
        for digest in [digest for digest, each in self._callers.items() if each is caller]:
            del self._callers[digest]
        if caller is self._shared:
            self._shared = None
        self._closing(caller)

    def _close(self, caller: Caller) -> None:
        assert not caller.calls, "a caller with a call under way stays"
        self._forget(caller)

    def _closing(self, caller: Caller) -> None:
        task = asyncio.create_task(self._close_when_unused(caller), name="close a caller")
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close_when_unused(self, caller: Caller) -> None:
        await caller.unused.wait()
        await caller.close()

    async def run(self) -> None:
        """Close idle callers, and ask whether a broker answers, until cancelled."""
        idle_s = self._settings.caller_idle_ms / 1000
        while True:
            await asyncio.sleep(min(5.0, idle_s / 2))
            now_s = asyncio.get_running_loop().time()
            for caller in self._different():
                if not caller.calls and now_s - caller.used_s >= idle_s:
                    self._close(caller)

    async def watch(self, every_s: float) -> None:
        """Ask brokers again and again whether one answers, until cancelled. A refusal is an answer, too."""
        client = self._examine(NO_TOKEN)
        try:
            while True:
                try:
                    await client.access.test("cluster")
                    self.answered_s = asyncio.get_running_loop().time()
                except LedgerMQError as error:
                    if not error.retriable:
                        self.answered_s = asyncio.get_running_loop().time()
                    else:
                        _log.warning("no broker answers: %s", error.message)
                await asyncio.sleep(every_s)
        finally:
            await client.close()

    async def close(self) -> None:
        """Flush the producers, and close all callers."""
        await end(*self._admissions.values())
        callers, self._shared = self._different(), None
        self._callers.clear()
        await asyncio.gather(*(caller.close() for caller in callers), *self._closings, return_exceptions=True)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
