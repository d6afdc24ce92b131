"""`AuthorizedService` puts the access rules around any `BrokerApi`, for one principal.

`GUARDS` has one guard for each method: the one that the .proto declares (`guards.declared`), or the code
in `BY_CODE`. A method without the option is for brokers only (and a test fails). A guard judges by the
names in the request only, never by what exists, so what is unknown and what is forbidden look alike to
those who may not see it. While rules are enforced, a broker's errors name no topic that the request does
not name (`Metadata`). Each batch and each partition gets its own error, as they do from the broker
itself. What only brokers send (`forwarded`, internal topics, calls about transactions between brokers) is
refused to all other callers, super principals included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from ledgermq.errors import Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame, StageFrame
from ledgermq.protocol.methods import METHODS, Kind, Method, UnaryCalls
from ledgermq.protocol.naming.unresolved import SUFFIX
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.audit.log import call_audit
from ledgermq_broker.access.guards.declared import declared_guard
from ledgermq_broker.access.guards.own import OWN_GUARDS
from ledgermq_broker.access.permissions import Permissions
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call, Guard, judged_until_answered, waits
from ledgermq_broker.access.wrappers.fetch_positions import FetchPositions, with_partitions
from ledgermq_broker.access.wrappers.refused_batches import Refusals, allowed_part, judged, merged

T = TypeVar("T")


class AuthorizedService(UnaryCalls):
    """`BrokerApi` for the principal of `permissions`. `service()`: the API without rules, for one call, which may be
    made again when the rules have changed.
    """

    def __init__(self, service: Callable[[], BrokerApi], permissions: Permissions) -> None:
        self._service = service
        self._permissions = permissions
        self.principal = permissions.principal

    async def ask(self, method: Method, request: Any) -> Any:
        self._permissions.check_credential()
        guard = GUARDS[method.attribute]
        assert guard is not None, method.name
        with call_audit() as audit:
            call = audit.before(getattr(self._service(), method.attribute))
            if waits(self._permissions, request):
                return await judged_until_answered(self._permissions, request, guard, call)
            return await guard(self._permissions, request, call)

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return _judged(self._permissions, requests, _produce_refusals, self._service().produce)

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return _judged(self._permissions, requests, _produce_refusals, self._service().produce_delayed)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return _judged(self._permissions, requests, _stage_refusals, self._service().stage)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return _judged(self._permissions, requests, _stage_refusals, self._service().stage_delayed)

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        return _fetch(self._permissions, request, self._service().fetch)


# Producing and staging


def _judged(
    may: Permissions,
    requests: AsyncIterator[Any],
    judge: Callable[[Permissions, Frame[Any]], Refusals],
    call: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
) -> AsyncIterator[Any]:
    """Judge each frame of a stream by the rules of the moment at which it arrives."""

    def refusals(frame: Frame[Any]) -> Refusals:
        may.check_credential()
        with call_audit():
            return judge(may, frame)

    may.check_credential()
    return judged(requests, refusals, call)


def _produce_refusals(may: Permissions, frame: Frame[Any]) -> Refusals:
    return [_refusal(_produce_refusal(may, batch.topic)) for batch in frame.header.batches]


def _stage_refusals(may: Permissions, frame: Frame[Any]) -> Refusals:
    refused = may.refusal(Operation.TRANSACTION, frame.header.transaction.transactional_id)
    if frame.header.also:
        also = [each for each in frame.header.also if not (refused or _produce_refusal(may, each.topic))]
        del frame.header.also[:]
        frame.header.also.extend(also)
    return [_refusal(refused or _produce_refusal(may, each.batch.topic)) for each in frame.header.batches]


def _produce_refusal(may: Permissions, topic: str) -> str:
    """Return why records may not be written to a topic. Brokers write the unresolved half messages of a check group to
    a topic of its name, and the group decides there what becomes of them: others would decide in its place.
    """
    refused = may.refusal(Operation.PRODUCE, topic)
    group = topic.removesuffix(SUFFIX)
    if refused or group in ("", topic):
        return refused
    of_group = may.refusal(Operation.GROUP, group)
    return "" if of_group and may.may(Operation.CLUSTER) else of_group


def _refusal(text: str) -> pb.Error | None:
    return error_to_proto(Unauthorized(text)) if text else None


async def _produce_once(may: Permissions, frame: ProduceFrame, call: Call) -> pb.ProduceResponse:
    refusals = _produce_refusals(may, frame)
    if all(refusal is None for refusal in refusals):
        answer: pb.ProduceResponse = await call(frame)
        return answer
    passed = allowed_part(frame, refusals)
    is_any_left = None in refusals
    result: pb.ProduceResponse = merged(await call(passed) if is_any_left else pb.ProduceResponse(), refusals)
    return result


# Fetching


async def _fetch(
    may: Permissions, request: pb.FetchRequest, call: Callable[[pb.FetchRequest], AsyncIterator[FetchFrame]]
) -> AsyncIterator[FetchFrame]:
    """Serve a stream. When the rules have changed, partitions that became forbidden end with their
    error, before another record of them is sent; the others go on where they were.
    """
    may.check_credential()
    wanted: Sequence[pb.FetchPartition] = list(request.partitions)
    while wanted:
        generation = may.generation
        with call_audit():
            refused, wanted = await _split_partitions(may, wanted)
        if refused:
            yield _refusals(refused)
        if not wanted:
            return
        passed = with_partitions(request, wanted)
        passed.direct = request.direct and _may_read_all(may)
        positions = FetchPositions(wanted)
        async with aclosing(call(passed)) as frames:  # type: ignore[type-var]
            async for frame in frames:
                may.check_credential()
                if may.generation != generation and not _may_go_on(may, passed):
                    break
                generation = may.generation
                positions.note(frame.header.partitions)
                sent = [frame]
                del frame  # only the receiver holds the answer
                yield sent.pop()
            else:
                return
        wanted = positions.partitions


def _may_go_on(may: Permissions, passed: pb.FetchRequest) -> bool:
    """Return whether a stream may send what it was opened for: all its partitions, and locations of segments
    if it sends them.
    """
    return all(may.may(Operation.CONSUME, part.topic) for part in passed.partitions) and (
        not passed.direct or _may_read_all(may)
    )


async def _split_partitions(
    may: Permissions, partitions: Iterable[pb.FetchPartition]
) -> tuple[list[pb.FetchedPartition], list[pb.FetchPartition]]:
    refused, allowed = [], []
    parts = list(partitions)
    errors = await may.refusals(Operation.CONSUME, (part.topic for part in parts))
    for part, error in zip(parts, errors, strict=True):
        if error:
            refused.append(
                pb.FetchedPartition(
                    topic=part.topic,
                    topic_id=part.topic_id,
                    partition=part.partition,
                    error=error_to_proto(Unauthorized(error)),
                )
            )
        else:
            allowed.append(part)
    return refused, allowed


def _refusals(refused: Sequence[pb.FetchedPartition]) -> FetchFrame:
    return Frame(pb.FetchHeader(partitions=refused), [])


def _may_read_all(may: Permissions) -> bool:
    """Return whether the principal may have the locations of segments, which hold records of any topic."""
    return may.may_all(Operation.CONSUME, "")


async def _fetch_once(may: Permissions, request: pb.FetchRequest, call: Call) -> FetchFrame:
    refused, allowed = await _split_partitions(may, request.partitions)
    if refused and not allowed:
        return _refusals(refused)
    direct = request.direct and _may_read_all(may)
    passed = request
    if refused or direct != request.direct:
        passed = with_partitions(request, allowed)
        passed.direct = direct
    if refused:
        passed.max_wait_ms = 0  # an error is an answer at once
    found: FetchFrame = await call(passed)
    found.header.partitions.extend(refused)
    return found


# All methods

BY_CODE: dict[str, Guard] = {
    "produce_once": _produce_once,
    "produce_delayed_once": _produce_once,
    "fetch_once": _fetch_once,
    **OWN_GUARDS,
}
"""The guards that no option of the .proto can say (`by_code`)."""


def _guard_of(method: Method) -> Guard | None:
    if method.kind is not Kind.UNARY:
        return None
    return BY_CODE[method.attribute] if method.guard.by_code else declared_guard(method)


GUARDS: dict[str, Guard | None] = {method.attribute: _guard_of(method) for method in METHODS}
"""By the attribute of the method. None: a stream, which the class itself guards."""
