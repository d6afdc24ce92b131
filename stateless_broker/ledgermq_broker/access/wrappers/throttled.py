"""`ThrottledService` puts quotas around any `BrokerApi`, for one client of one principal.

    what comes          limits              above a limit
    batches             requests, bytes_in, every batch of the frame gets RESOURCE_EXHAUSTED
                        dollars_month
    staged batches      the same, and       the same
                        open_transactions
    a fetch, a look-up  bytes_out,          the next answer is held back; a single call is refused after
                        dollars_month       `HELD_S_MAX`; a principal looks up once at a time
    every other call    requests            RESOURCE_EXHAUSTED

Batches go on with the name of the principal, so that principals take turns in the broker's queues, and
calls that use an identity with a hash of it (`ProducerSession.principal`). Each
refusal says when to come back; clients wait that long. Calls that free what others could use, and
those by which an administrator ends an overload, count, but are never refused. What the access rules
refuse does not count. When they judge a call again while it waits, it counts no second time (`for_one_call`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor

from ledgermq.errors import QuotaExceeded, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame, StageFrame
from ledgermq.protocol.methods import METHODS, Method, UnaryCalls
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.quota_counts import QuotaCounts
from ledgermq_broker.access.state.quotas import ANONYMOUS, RATES, Limit
from ledgermq_broker.access.state.rules import hash_of
from ledgermq_broker.access.state.usage import Account, Excess, OpenTransaction
from ledgermq_broker.access.wrappers.fetch_positions import FetchPositions, with_partitions
from ledgermq_broker.access.wrappers.refused_batches import Refusals, judged, merged
from ledgermq_ledger.object_store.wrappers.payers import set_caller

SEARCH_PAUSE_MS = 100
HELD_S_MAX = 2.0
"""A single fetch waits this long at most; callers bound the time of a call."""
SIGN_S = 3.0
"""While a stream is held back for longer, its reader gets an empty answer at this interval. Readers
take a silence of ten seconds for the end of their broker.
"""
NEVER_REFUSED = frozenset(method.attribute for method in METHODS if method.is_never_refused)
"""By the option `never_refused` in the .proto."""

ANSWER_BYTES: dict[str, Callable[[Any], int]] = {
    "fetch_once": lambda frame: frame.payload_bytes,
    "share_fetch": lambda frame: frame.payload_bytes,
    "find_messages": lambda answer: len(answer.batch),
}
"""By method: the bytes of records in an answer."""

_BATCHES = (Limit.REQUESTS, Limit.BYTES_IN, Limit.DOLLARS_MONTH)
_CALL = (Limit.REQUESTS,)
_ANSWER = (Limit.BYTES_OUT, Limit.DOLLARS_MONTH)
"""Nothing is taken from dollars here: a request to the store takes its price when it has ended (`Usages.spend`)."""


class ThrottledService(UnaryCalls):
    """`service`: the API without quotas. `is_open(transaction)`: whether anything of it is staged here."""

    def __init__(
        self,
        service: BrokerApi,
        account: Account,
        counts: QuotaCounts,
        is_open: Callable[[OpenTransaction], bool],
    ) -> None:
        self._service = service
        self._is_open = is_open
        self._account = account
        self._counts = counts
        self._sender = "" if account.principal == ANONYMOUS else account.principal

    def for_one_call(self) -> ThrottledService:
        """Return the same service for one call of the caller, which may be made again until it is answered."""
        return _OneCall(self._service, self._account, self._counts, self._is_open)

    async def ask(self, method: Method, request: Any) -> Any:
        """See `UnaryCalls.ask`. Raises ResourceExhausted, and what the service raises."""
        set_caller(self._sender)
        call = getattr(self._service, method.attribute)
        request = self._identified(request)
        if method.attribute in ("produce_once", "produce_delayed_once"):
            refusals = self._judge(request)
            is_allowed = all(refusal is None for refusal in refusals)
            if not is_allowed:
                return merged(pb.ProduceResponse(), refusals)
            answer = await call(replace(request, sender=self._sender))
            self._note_shares(answer)
            return answer
        self._let_in(() if method.attribute in NEVER_REFUSED else _CALL)
        if method.attribute not in ANSWER_BYTES:
            return await self._shared(call, request)
        await self._hold()
        with self._search() if method.attribute == "find_messages" else nullcontext():
            answer = await self._shared(call, request)
        self._take(Limit.BYTES_OUT, ANSWER_BYTES[method.attribute](answer))
        return answer

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._streamed(requests, self._judge, self._service.produce)

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return self._streamed(requests, self._judge, self._service.produce_delayed)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._streamed(requests, self._judge_staged, self._service.stage)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return self._streamed(requests, self._judge_staged, self._service.stage_delayed)

    def _streamed(
        self,
        requests: AsyncIterator[Any],
        judge: Callable[[Any], Refusals],
        call: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
    ) -> AsyncIterator[Any]:
        return judged(requests, judge, call, self._sender, self._note_shares)

    async def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        """Serve a stream. While it is held back it occupies nothing in the broker: the stream inside is
        closed, and opened again from where it was. One that is opened above a limit is held back, too.
        """
        self._let_in(_CALL)
        positions = FetchPositions(request.partitions)
        passed = request
        while passed.partitions:
            async for sign in self._held_back():
                yield sign
            set_caller(self._sender)
            async with aclosing(self._service.fetch(passed)) as frames:  # type: ignore[type-var]
                async for frame in frames:
                    positions.note(frame.header.partitions)
                    self._take(Limit.BYTES_OUT, frame.payload_bytes)
                    sent = [frame]
                    del frame  # only the receiver holds the answer
                    yield sent.pop()
                    set_caller(self._sender)  # what goes on may be another task
                    if self._excess(_ANSWER) is not None:
                        break
                else:
                    return
            passed = with_partitions(request, positions.partitions)

    def _identified(self, request: Any) -> Any:
        """Return the request with the hash of this principal, if it is one that uses an identity: a producer's id, a
        transactional id. What the caller states there never counts.
        """
        own = hash_of(self._sender)
        if isinstance(request, Frame) or "caller" not in request.DESCRIPTOR.fields_by_name or request.caller == own:
            return request
        identified = type(request)()
        identified.CopyFrom(request)
        identified.caller = own
        return identified

    async def _shared(self, call: Callable[[Any], Any], request: Any) -> Any:
        """Call, and count a refusal because the principal has its share of a table."""
        try:
            answer = await call(request)
        except QuotaExceeded as error:
            self._counts.refused(self._account.principal, error.limit)
            raise
        self._note_shares(answer)
        return answer

    def _note_shares(self, answer: Any) -> None:
        """Count what an answer refuses because the principal has its share of a table: once for each table."""
        for limit in {error.limit for error in _errors_in(answer) if error.limit}:
            self._counts.refused(self._account.principal, limit)

    @contextmanager
    def _search(self) -> Iterator[None]:
        """Count a look-up. Raises ResourceExhausted while the principal has another one under way."""
        if not self._account.begin_search():
            raise ResourceExhausted(
                f"{self._account.principal} has a look-up under way at this broker; the next one has to wait until it"
                " has ended",
                retry_after_ms=SEARCH_PAUSE_MS,
            )
        try:
            yield
        finally:
            self._account.end_search()

    async def _held_back(self) -> AsyncIterator[FetchFrame]:
        """Wait until the next answer may be sent; yield signs of life."""
        while (excess := self._excess(_ANSWER)) is not None:
            pause_s = min(excess.wait_s, SIGN_S)
            self._counts.held(self._account.principal, excess.limit.title, pause_s)
            await asyncio.sleep(pause_s)
            if excess.wait_s > SIGN_S:
                yield Frame(pb.FetchHeader(), [])

    async def _hold(self) -> None:
        """Wait until an answer may be sent. Raises ResourceExhausted if that takes too long."""
        left_s = HELD_S_MAX
        while (excess := self._excess(_ANSWER)) is not None:
            if excess.wait_s > left_s:
                raise self._refused(excess)
            left_s -= excess.wait_s
            self._counts.held(self._account.principal, excess.limit.title, excess.wait_s)
            await asyncio.sleep(excess.wait_s)

    def _judge_staged(self, frame: StageFrame) -> Refusals:
        ref = frame.header.transaction
        transaction = (ref.producer_id, ref.epoch, ref.number)
        return self._judge(frame, self._account.stage(transaction, _now_s(), self._is_open))

    def _judge(self, frame: Frame[Any], excess: Excess | None = None) -> Refusals:
        """Refuse all batches of a frame, or let it through and count it. `excess`: a limit that is known to
        be reached.
        """
        excess = excess or self._excess(_BATCHES)
        if excess is not None:
            if not frame.header.batches:
                raise self._refused(excess)  # no result could say it
            refusal = error_to_proto(self._refused(excess))
            return [refusal] * len(frame.header.batches)
        self._take(Limit.REQUESTS, 1)
        self._take(Limit.BYTES_IN, frame.payload_bytes)
        return [None] * len(frame.header.batches)

    def _let_in(self, limits: Iterable[Limit]) -> None:
        """Count a call. Raises ResourceExhausted if one of the limits is reached."""
        excess = self._excess(limits)
        if excess is not None:
            raise self._refused(excess)
        self._take(Limit.REQUESTS, 1)

    def _refused(self, excess: Excess) -> QuotaExceeded:
        self._counts.refused(self._account.principal, excess.limit.title)
        return refusal_of(excess)

    def _excess(self, limits: Iterable[Limit]) -> Excess | None:
        return self._account.excess(limits, _now_s())

    def _take(self, limit: Limit, amount: int) -> None:
        self._account.take(limit, amount, _now_s())


class _OneCall(ThrottledService):
    """Lets one call in once, and an answer of it out once, however often the call is made."""

    _is_in = _is_held = False

    def _let_in(self, limits: Iterable[Limit]) -> None:
        if not self._is_in:
            super()._let_in(limits)
            self._is_in = True

    async def _hold(self) -> None:
        if not self._is_held:
            await super()._hold()
            self._is_held = True


def _errors_in(answer: Any) -> Iterator[pb.Error]:
    """Yield the errors of the entries of an answer, where it has one for each entry of its request."""
    message = answer.header if isinstance(answer, Frame) else answer
    for name in _fields_with_errors(message.DESCRIPTOR):
        yield from (each.error for each in getattr(message, name) if each.HasField("error"))


@cache
def _fields_with_errors(kind: Descriptor) -> tuple[str, ...]:
    """Return the repeated fields of a message whose entries have an error each."""
    return tuple(
        field.name
        for field in kind.fields
        if field.is_repeated
        and field.message_type is not None
        and (error := field.message_type.fields_by_name.get("error")) is not None
        and error.message_type is pb.Error.DESCRIPTOR
    )


def refusal_of(excess: Excess) -> QuotaExceeded:
    """Return the error for a caller that has reached a limit."""
    rate = " a second" if excess.limit in RATES else ""
    return QuotaExceeded(
        f"{excess.whose} has reached its quota at this broker: {excess.limit.title} {excess.limit.shown(excess.bound)}"
        f"{rate}; retry in {excess.wait_s:.3g} s, or ask an administrator for more (`ledgermq quota set`)",
        limit=excess.limit.title,
        retry_after_ms=max(1, math.ceil(1000 * excess.wait_s)),
    )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
