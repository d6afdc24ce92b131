"""`AuthorizedService` puts the access rules around any `BrokerApi`, for one principal.

`GUARDS` has one guard for each method; a method without one cannot be called (and a test fails). A
guard judges by the names in the request only, never by what exists, so what is unknown and what is
forbidden look alike to those who may not see it. While rules are enforced, a broker's errors name no topic
that the request does not name (`Metadata`). Each batch and each partition gets its own error, as
they do from the broker itself. What only brokers send (`forwarded`, internal topics, calls about
transactions between brokers) is refused to all other callers, super principals included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from ledgermq.errors import Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.frames import FetchFrame, Frame, ProduceFrame, ShareFetchFrame, StageFrame
from ledgermq.protocol.methods import Method, UnaryCalls
from ledgermq.protocol.status import error_to_proto
from ledgermq.protocol.unresolved import SUFFIX
from ledgermq_broker.access.audit import call_audit
from ledgermq_broker.access.fetch_positions import FetchPositions, with_partitions
from ledgermq_broker.access.permissions import Permissions, refuse_forwarded
from ledgermq_broker.access.refused_batches import Refusals, allowed_part, answered_in_order, merged
from ledgermq_broker.access.state.rule_set import literal_prefix
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call, Guard, judged_until_answered, waits

T = TypeVar("T")


class AuthorizedService(UnaryCalls):
    """`BrokerApi` for the principal of `permissions`."""

    def __init__(self, service: BrokerApi, permissions: Permissions) -> None:
        self._service = service
        self._permissions = permissions
        self.principal = permissions.principal

    async def ask(self, method: Method, request: Any) -> Any:
        self._permissions.check_credential()
        guard = GUARDS[method.attribute]
        assert guard is not None, method.name
        with call_audit() as audit:
            call = audit.before(getattr(self._service, method.attribute))
            if waits(self._permissions, request):
                return await judged_until_answered(self._permissions, request, guard, call)
            return await guard(self._permissions, request, call)

    def produce(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return _judged(self._permissions, requests, _produce_refusals, self._service.produce)

    def produce_delayed(self, requests: AsyncIterator[ProduceFrame]) -> AsyncIterator[pb.ProduceResponse]:
        return _judged(self._permissions, requests, _produce_refusals, self._service.produce_delayed)

    def stage(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return _judged(self._permissions, requests, _stage_refusals, self._service.stage)

    def stage_delayed(self, requests: AsyncIterator[StageFrame]) -> AsyncIterator[pb.StageResponse]:
        return _judged(self._permissions, requests, _stage_refusals, self._service.stage_delayed)

    def fetch(self, request: pb.FetchRequest) -> AsyncIterator[FetchFrame]:
        return _fetch(self._permissions, request, self._service.fetch)


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
    return answered_in_order(requests, refusals, call)


def _produce_refusals(may: Permissions, frame: Frame[Any]) -> Refusals:
    return [_refusal(_produce_refusal(may, batch.topic)) for batch in frame.header.batches]


def _stage_refusals(may: Permissions, frame: Frame[Any]) -> Refusals:
    refused = may.refusal(Operation.TRANSACTION, frame.header.transaction.transactional_id)
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


# Lists of topics or partitions in one request


def _each(
    field: str,
    operation: Operation,
    refusal: Callable[[Any, pb.Error], Any],
    answers: str = "results",
    before: Callable[[Permissions, Any], None] = lambda may, request: None,
) -> Guard:
    """Guard a call that names a topic in each entry of `field` and answers each of them, in order, in
    the field `answers`. `before` judges what is common to all.
    """

    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        before(may, request)
        wanted = list(getattr(request, field))
        errors = await may.refusals(operation, (entry.topic for entry in wanted))
        if not any(errors):
            return await call(request)
        passed = type(request)()
        passed.CopyFrom(request)
        allowed = [entry for entry, error in zip(wanted, errors, strict=True) if not error]
        del getattr(passed, field)[:]
        getattr(passed, field).extend(allowed)
        kind = _response_of(request)
        answer = await call(passed) if allowed else kind()
        own = iter(getattr(answer, answers))
        merged = [
            refusal(entry, error_to_proto(Unauthorized(error))) if error else next(own)
            for entry, error in zip(wanted, errors, strict=True)
        ]
        result = kind()
        result.CopyFrom(answer)
        result.ClearField(answers)
        getattr(result, answers).extend(merged)
        return result

    return guard


def _response_of(request: Any) -> Any:
    return getattr(pb, type(request).__name__.removesuffix("Request") + "Response")


def _of_group(may: Permissions, request: Any) -> None:
    may.require(Operation.GROUP, request.group)


async def _fetch_committed(may: Permissions, request: pb.FetchCommittedRequest, call: Call) -> Any:
    if request.partitions:
        return await _fetch_committed_named(may, request, call)
    _of_group(may, request)
    answer: pb.FetchCommittedResponse = await call(request)
    return pb.FetchCommittedResponse(
        partitions=[part for part in answer.partitions if may.may(Operation.DESCRIBE, part.topic)]
    )


_fetch_committed_named = _each(
    "partitions",
    Operation.DESCRIBE,
    lambda entry, error: pb.CommittedPartition(topic=entry.topic, partition=entry.partition, error=error),
    "partitions",
    _of_group,
)


# Topics


async def _describe_topics(may: Permissions, request: pb.DescribeTopicsRequest, call: Call) -> Any:
    if not request.topics:
        answer: pb.DescribeTopicsResponse = await call(request)
        return pb.DescribeTopicsResponse(
            topics=[info for info in answer.topics if may.may(Operation.DESCRIBE, info.name)]
        )
    infos: dict[str, pb.TopicInfo] = {}
    allowed = []
    errors = await may.refusals(Operation.DESCRIBE, request.topics)
    for name, error in zip(request.topics, errors, strict=True):
        if error:
            infos[name] = pb.TopicInfo(name=name, error=error_to_proto(Unauthorized(error)))
        else:
            allowed.append(name)
    creates = set()
    if request.auto_create:
        refusals = await may.refusals(Operation.CREATE, allowed)
        creates = {name for name, error in zip(allowed, refusals, strict=True) if not error}
    for names, auto_create in (
        ([name for name in allowed if name in creates], True),
        ([name for name in allowed if name not in creates], False),
    ):
        if names:
            passed = pb.DescribeTopicsRequest(topics=names, auto_create=auto_create, fresh=request.fresh)
            infos |= {info.name: info for info in (await call(passed)).topics}
    return pb.DescribeTopicsResponse(topics=[infos[name] for name in request.topics])


async def _describe_cluster(may: Permissions, request: pb.DescribeClusterRequest, call: Call) -> Any:
    """Every principal needs the owners of bundles, and the sink of Spark the root; problems name topics
    and groups, and are for administrators.
    """
    answer: pb.DescribeClusterResponse = await call(request)
    if not may.may(Operation.CLUSTER):
        answer.ClearField("problems")
        for bundle in answer.bundles:
            bundle.ClearField("trouble")
    return answer


def _topic_change(operation: Operation) -> Guard:
    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        refuse_forwarded(may, forwarded=request.forwarded)
        may.changes(operation, request.name)
        return await call(request)

    return guard


async def _delete_records(may: Permissions, request: pb.DeleteRecordsRequest, call: Call) -> Any:
    may.changes(Operation.DELETE, request.topic)
    return await call(request)


def _of_topic(operation: Operation) -> Guard:
    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        may.require(operation, request.topic)
        return await call(request)

    return guard


async def _list_delayed(may: Permissions, request: pb.ListDelayedRequest, call: Call) -> Any:
    """The list shows keys of messages; that of all topics is for administrators."""
    if request.topic:
        may.require(Operation.CONSUME, request.topic)
    else:
        may.require(Operation.CLUSTER)
    return await call(request)


# Groups


async def _group_heartbeat(may: Permissions, request: pb.GroupHeartbeatRequest, call: Call) -> Any:
    _of_group(may, request)
    if request.step in (pb.STAY, pb.JOIN):
        await may.require_each(Operation.CONSUME, dict.fromkeys(part.topic for part in request.owned))
    if request.HasField("subscription"):
        subscription = request.subscription
        await may.require_each(Operation.CONSUME, subscription.topics)
        if subscription.topic_pattern:
            may.require_all(
                Operation.CONSUME,
                literal_prefix(subscription.topic_pattern),
                f"the pattern {subscription.topic_pattern[:300]!r}",
            )
    return await call(request)


async def _group(may: Permissions, request: Any, call: Call) -> Any:
    _of_group(may, request)
    return await call(request)


async def _delete_group(may: Permissions, request: pb.DeleteGroupRequest, call: Call) -> Any:
    may.changes(Operation.GROUP, request.group)
    return await call(request)


def _change_of_group(may: Permissions, request: Any) -> None:
    may.changes(Operation.GROUP, request.group)


async def _list_groups(may: Permissions, request: pb.ListGroupsRequest, call: Call) -> Any:
    answer: pb.ListGroupsResponse = await call(request)
    return pb.ListGroupsResponse(
        groups=[info for info in answer.groups if may.may(Operation.GROUP, info.group)], partitions=answer.partitions
    )


# Transactions


def _id_of(request: Any) -> str:
    id_: str = (
        request.transaction.transactional_id
        if "transaction" in request.DESCRIPTOR.fields_by_name
        else request.transactional_id
    )
    return id_


async def _transaction(may: Permissions, request: Any, call: Call) -> Any:
    may.require(Operation.TRANSACTION, _id_of(request))
    return await call(request)


async def _init_transactions(may: Permissions, request: pb.InitTransactionsRequest, call: Call) -> Any:
    may.require(Operation.TRANSACTION, request.transactional_id)
    if request.check_group:
        may.require(Operation.GROUP, request.check_group)
    return await call(request)


async def _stage_offsets(may: Permissions, request: pb.StageOffsetsRequest, call: Call) -> Any:
    """With one refused partition nothing of the request is staged."""
    may.require(Operation.TRANSACTION, _id_of(request))
    _of_group(may, request)
    await may.require_each(Operation.CONSUME, dict.fromkeys(commit.topic for commit in request.commits))
    return await call(request)


async def _list_transactions(may: Permissions, request: pb.ListTransactionsRequest, call: Call) -> Any:
    answer: pb.ListTransactionsResponse = await call(request)
    shown = pb.ListTransactionsResponse()
    shown.CopyFrom(answer)
    del shown.transactions[:], shown.staged[:]
    shown.transactions.extend(found for found in answer.transactions if may.may(Operation.TRANSACTION, _id_of(found)))
    shown.staged.extend(found for found in answer.staged if may.may(Operation.TRANSACTION, _id_of(found)))
    return shown


async def _poll_checks(may: Permissions, request: pb.PollChecksRequest, call: Call) -> Any:
    """Checks show messages that the producers of the group sent."""
    may.require(Operation.GROUP, request.check_group)
    return await call(request)


# Queue groups


async def _share_fetch(may: Permissions, request: pb.ShareFetchRequest, call: Call) -> ShareFetchFrame:
    """Refused partitions have their error in the answer, beside the messages of the others."""
    _of_group(may, request)
    refused, allowed = [], []
    errors = await may.refusals(Operation.CONSUME, (part.topic for part in request.partitions))
    for part, error in zip(request.partitions, errors, strict=True):
        if error:
            refusal = error_to_proto(Unauthorized(error))
            refused.append(pb.LeasedPartition(topic=part.topic, partition=part.partition, error=refusal))
        else:
            allowed.append(part)
    if refused and not allowed:
        return Frame(pb.ShareFetchHeader(partitions=refused), [])
    passed = request
    if refused:
        passed = pb.ShareFetchRequest()
        passed.CopyFrom(request)
        del passed.partitions[:]
        passed.partitions.extend(allowed)
        passed.max_wait_ms = 0  # an error is an answer at once
    found: ShareFetchFrame = await call(passed)
    found.header.partitions.extend(refused)
    return found


async def _list_shares(may: Permissions, request: pb.ListSharesRequest, call: Call) -> pb.ListSharesResponse:
    answer: pb.ListSharesResponse = await call(request)
    return pb.ListSharesResponse(
        shares=[
            info
            for info in answer.shares
            if may.may(Operation.GROUP, info.group) and (not info.topic or may.may(Operation.DESCRIBE, info.topic))
        ]
    )


# The cluster, rules, tokens and quotas


async def _administration(may: Permissions, request: Any, call: Call) -> Any:
    may.changes(Operation.CLUSTER)
    return await call(request)


async def _cluster_change(may: Permissions, request: Any, call: Call) -> Any:
    refuse_forwarded(may, forwarded=request.forwarded)
    may.changes(Operation.CLUSTER)
    if "created_by" not in request.DESCRIPTOR.fields_by_name or may.principal.is_broker:
        return await call(request)
    passed = type(request)()
    passed.CopyFrom(request)
    passed.created_by = may.principal.name
    return await call(passed)


async def _test_rules(may: Permissions, request: pb.TestRulesRequest, call: Call) -> Any:
    """Every principal may ask about itself."""
    if request.principal and request.principal != may.principal.name:
        may.require(Operation.CLUSTER)
        return await call(request)
    principal, groups = may.principal.name, sorted(may.principal.groups)
    return await call(
        pb.TestRulesRequest(principal=principal, groups=groups, operation=request.operation, name=request.name)
    )


async def _for_brokers(may: Permissions, request: Any, call: Call) -> Any:
    may.require_broker(f"a {type(request).__name__.removesuffix('Request')} call")
    return await call(request)


GUARDS: dict[str, Guard | None] = {
    "produce": None,
    "produce_once": _produce_once,
    "fetch": None,
    "fetch_once": _fetch_once,
    "list_offsets": _each("queries", Operation.DESCRIBE, lambda entry, error: pb.OffsetResult(error=error)),
    "open_producer": _each(
        "partitions", Operation.PRODUCE, lambda entry, error: pb.OpenedPartition(error=error), "partitions"
    ),
    "describe_cluster": _describe_cluster,
    "describe_topics": _describe_topics,
    "create_topic": _topic_change(Operation.CREATE),
    "alter_topic": _topic_change(Operation.ALTER),
    "delete_topic": _topic_change(Operation.DELETE),
    "delete_records": _delete_records,
    "find_messages": _of_topic(Operation.CONSUME),
    "group_heartbeat": _group_heartbeat,
    "commit_offsets": _each(
        "commits", Operation.CONSUME, lambda entry, error: pb.CommitResult(error=error), before=_of_group
    ),
    "fetch_committed": _fetch_committed,
    "reset_offsets": _each(
        "resets", Operation.CONSUME, lambda entry, error: pb.CommitResult(error=error), before=_change_of_group
    ),
    "list_groups": _list_groups,
    "describe_group": _group,
    "delete_group": _delete_group,
    "stage": None,
    "stage_delayed": None,
    "stage_offsets": _stage_offsets,
    "init_transactions": _init_transactions,
    "end_transaction": _transaction,
    "transaction_outcome": _transaction,
    "resolve_transaction": _administration,
    "list_transactions": _list_transactions,
    "describe_transaction": _transaction,
    "complete_transaction": _for_brokers,
    "ask_transaction": _for_brokers,
    "poll_checks": _poll_checks,
    "read_staged": _for_brokers,
    "produce_delayed": None,
    "produce_delayed_once": _produce_once,
    "recall_delayed": _of_topic(Operation.PRODUCE),
    "list_delayed": _list_delayed,
    "share_fetch": _share_fetch,
    "share_answer": _each(
        "partitions", Operation.CONSUME, lambda entry, error: pb.SharePartitionResult(error=error), before=_of_group
    ),
    "reset_shares": _each(
        "resets", Operation.CONSUME, lambda entry, error: pb.ShareResetResult(error=error), before=_change_of_group
    ),
    "list_shares": _list_shares,
    "hold_partitions": _each(
        "partitions", Operation.PRODUCE, lambda entry, error: pb.PartitionHolder(error=error), "holders"
    ),
    "release_partitions": _each(
        "partitions", Operation.PRODUCE, lambda entry, error: pb.ReleasedPartition(error=error), "partitions"
    ),
    "change_rules": _cluster_change,
    "list_rules": _administration,
    "test_rules": _test_rules,
    "create_token": _cluster_change,
    "revoke_token": _cluster_change,
    "list_tokens": _administration,
    "confirm_rules": _for_brokers,
    "change_quota": _cluster_change,
    "list_quotas": _administration,
    "drain_broker": _administration,
    "add_bundles": _cluster_change,
    "move_partition": _cluster_change,
    "prepare_move": _for_brokers,
    "list_loads": _administration,
    "slowest_commits": _for_brokers,
}
"""By the attribute of the method. None: a stream, which the class itself guards."""
