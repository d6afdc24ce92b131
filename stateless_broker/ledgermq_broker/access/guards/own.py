"""Guards of single methods that no option of the .proto can say: of lists, whose answers show what the caller may
see; of groups; of what a request needs in one case only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ledgermq.errors import Unauthorized, UnknownSchema
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame, ShareFetchFrame
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.guards.declared import each_guard, signed
from ledgermq_broker.access.permissions import Permissions, refuse_forwarded
from ledgermq_broker.access.state.rule_set import literal_prefix
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call, Guard
from ledgermq_broker.groups.lags import lag_page

LISTED_AT_ONCE = 1_000
"""Topics that one call lists, at least, while their names are judged."""
LISTED_TIMES = 4
"""So many times as many the next call lists. Each call sorts all names, so one for each 1,000 would cost a caller
without rights nothing, and the broker much."""


def _of_group(may: Permissions, request: Any) -> None:
    may.require(Operation.GROUP, request.group)


async def _fetch_committed(may: Permissions, request: pb.FetchCommittedRequest, call: Call) -> Any:
    _of_group(may, request)
    if request.partitions:
        return await _fetch_committed_named(may, request, call)
    answer: pb.FetchCommittedResponse = await call(request)
    hidden = await _hidden(may, (part.topic for part in answer.partitions))
    return pb.FetchCommittedResponse(partitions=[part for part in answer.partitions if part.topic not in hidden])


async def _describe_group(may: Permissions, request: pb.DescribeGroupRequest, call: Call) -> Any:
    """Offsets and partitions of topics that the caller may not describe are left out, as Kafka does with offsets.
    What classic members say to each other is theirs, and shown as it is, as in Kafka.
    """
    _of_group(may, request)
    answer: pb.DescribeGroupResponse = await call(request)
    found, shown = answer.group, pb.DescribeGroupResponse()
    shown.CopyFrom(answer)
    lists: list[tuple[Any, Any]] = [(found.committed, shown.group.committed), (found.pending, shown.group.pending)]
    for member, copy in zip(found.members, shown.group.members, strict=True):
        lists += [(member.assigned, copy.assigned), (member.owned, copy.owned), (member.target, copy.target)]
    names = {row.topic for rows, _ in lists for row in rows}
    hidden = await _hidden(may, names.union(*(member.subscription.topics for member in found.members)))
    if not hidden:
        return answer
    for rows, copied in lists:
        del copied[:]
        copied.extend(row for row in rows if row.topic not in hidden)
    for member, copy in zip(found.members, shown.group.members, strict=True):
        copy.subscription.topics[:] = [name for name in member.subscription.topics if name not in hidden]
    return shown


async def _hidden(may: Permissions, topics: Iterable[str]) -> set[str]:
    """Return those of the topics that the caller may not describe."""
    names = sorted(set(topics))
    refused = await may.refusals(Operation.DESCRIBE, names)
    return {name for name, text in zip(names, refused, strict=True) if text}


_fetch_committed_named = each_guard(Operation.DESCRIBE, "partitions", "partitions", pb.FetchCommittedResponse)


# Topics


async def _describe_topics(may: Permissions, request: pb.DescribeTopicsRequest, call: Call) -> Any:
    if not request.topics:
        return await _listed_topics(may, request, call)
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
            passed = pb.DescribeTopicsRequest(
                topics=names, auto_create=auto_create, fresh=request.fresh, deleted=request.deleted
            )
            infos |= {info.name: info for info in (await call(passed)).topics}
    return pb.DescribeTopicsResponse(topics=[infos[name] for name in request.topics])


async def _listed_topics(may: Permissions, request: pb.DescribeTopicsRequest, call: Call) -> Any:
    """List the topics that the caller may see. A page is cut behind this: otherwise its last name could be one that
    the caller may not see, and pages would be of any length.
    """
    found: list[pb.TopicInfo] = []
    part = pb.DescribeTopicsRequest()
    part.CopyFrom(request)
    part.limit = request.limit and max(request.limit, LISTED_AT_ONCE)
    while True:
        answer: pb.DescribeTopicsResponse = await call(part)
        found += (info for info in answer.topics if may.may(Operation.DESCRIBE, info.name))
        if not request.limit or len(found) >= request.limit or len(answer.topics) < part.limit:
            return pb.DescribeTopicsResponse(topics=found[: request.limit or None])
        part.after = answer.topics[-1].name
        part.limit *= LISTED_TIMES


async def _delete_topic(may: Permissions, request: pb.DeleteTopicRequest, call: Call) -> Any:
    refuse_forwarded(may, forwarded=request.forwarded)
    if request.with_cuts:
        may.require(Operation.CLUSTER)
    may.changes(Operation.DELETE, request.name)
    return await call(request)


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
    if request.step in (pb.STAY, pb.JOIN) and not request.HasField("kafka"):  # which lists only what it lets go
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


async def _list_groups(may: Permissions, request: pb.ListGroupsRequest, call: Call) -> Any:
    if request.topic:
        may.require(Operation.DESCRIBE, request.topic)  # the answer has offsets of it
    answer: pb.ListGroupsResponse = await call(request)
    return pb.ListGroupsResponse(
        groups=[info for info in answer.groups if may.may(Operation.GROUP, info.group)],
        partitions=answer.partitions,
        of_topic=answer.of_topic,
    )


async def _list_lags(may: Permissions, request: pb.ListLagsRequest, call: Call) -> Any:
    """A page is cut behind the rules, for the same reason as that of topics."""
    every = pb.ListLagsRequest(topic=request.topic, group=request.group, after=request.after)
    answer: pb.ListLagsResponse = await call(every)
    shown = [
        info for info in answer.lags if may.may(Operation.GROUP, info.group) and may.may(Operation.DESCRIBE, info.topic)
    ]
    return lag_page(shown, request.limit)


# Transactions


def _id_of(request: Any) -> str:
    id_: str = (
        request.transaction.transactional_id
        if "transaction" in request.DESCRIPTOR.fields_by_name
        else request.transactional_id
    )
    return id_


async def _init_transactions(may: Permissions, request: pb.InitTransactionsRequest, call: Call) -> Any:
    may.require(Operation.TRANSACTION, request.transactional_id)
    if request.check_group:
        may.require(Operation.GROUP, request.check_group)
    return await call(request)


_add_partitions = each_guard(Operation.PRODUCE, "partitions", "results", pb.AddToTransactionResponse)


async def _add_to_transaction(may: Permissions, request: pb.AddToTransactionRequest, call: Call) -> Any:
    may.require(Operation.TRANSACTION, request.transaction.transactional_id)
    if request.group:
        may.require(Operation.GROUP, request.group)
    return await _add_partitions(may, request, call)


async def _list_transactions(may: Permissions, request: pb.ListTransactionsRequest, call: Call) -> Any:
    answer: pb.ListTransactionsResponse = await call(request)
    shown = pb.ListTransactionsResponse()
    shown.CopyFrom(answer)
    del shown.transactions[:], shown.staged[:]
    shown.transactions.extend(found for found in answer.transactions if may.may(Operation.TRANSACTION, _id_of(found)))
    shown.staged.extend(found for found in answer.staged if may.may(Operation.TRANSACTION, _id_of(found)))
    return shown


async def _describe_transaction(may: Permissions, request: pb.DescribeTransactionRequest, call: Call) -> Any:
    """Names of topics that the caller may not describe are left out."""
    may.require(Operation.TRANSACTION, request.transactional_id)
    answer: pb.DescribeTransactionResponse = await call(request)
    refused = await may.refusals(Operation.DESCRIBE, (place.topic for place in answer.added))
    shown = pb.DescribeTransactionResponse()
    shown.CopyFrom(answer)
    del shown.added[:]
    shown.added.extend(place for place, text in zip(answer.added, refused, strict=True) if not text)
    return shown


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


# Schemas


def topic_of(subject: str) -> str:
    """Return the topic whose rules say what may be done to a subject."""
    for suffix in ("-value", "-key"):
        if subject.endswith(suffix):
            return subject.removesuffix(suffix)
    return subject


async def _put_schema(may: Permissions, request: pb.PutSchemaRequest, call: Call) -> Any:
    refuse_forwarded(may, forwarded=request.forwarded)
    topic = topic_of(request.subject)
    if request.dry_run:
        may.require(Operation.DESCRIBE, topic)
    else:
        if request.kind or request.text:
            may.changes(Operation.PRODUCE, topic)
        if request.compatibility or not (request.kind or request.text):
            may.changes(Operation.ALTER, topic)
    return await signed(may, request, call)


async def _describe_schema(may: Permissions, request: pb.DescribeSchemaRequest, call: Call) -> Any:
    """An id names no subject: one of those that have it has to be visible, or it is as though there were none."""
    if not request.id:
        may.require(Operation.DESCRIBE, topic_of(request.subject))
        return await call(request)
    answer: pb.DescribeSchemaResponse = await call(request)
    shown = [each for each in answer.subjects if may.may(Operation.DESCRIBE, topic_of(each))]
    if not shown:
        raise UnknownSchema(f"there is no schema with the id {request.id}")
    found = pb.DescribeSchemaResponse()
    found.CopyFrom(answer)
    del found.subjects[:]
    found.subjects.extend(shown)
    if found.schema.subject not in shown:
        found.schema.subject, found.schema.version = shown[0], 0
        found.ClearField("compatibility")
        del found.schema.fields[:]
    return found


async def _list_schemas(may: Permissions, request: pb.ListSchemasRequest, call: Call) -> Any:
    answer: pb.ListSchemasResponse = await call(request)
    refused = await may.refusals(Operation.DESCRIBE, (topic_of(each.subject) for each in answer.subjects))
    return pb.ListSchemasResponse(
        subjects=[each for each, text in zip(answer.subjects, refused, strict=True) if not text]
    )


async def _delete_schema(may: Permissions, request: pb.DeleteSchemaRequest, call: Call) -> Any:
    refuse_forwarded(may, forwarded=request.forwarded)
    may.changes(Operation.DELETE, topic_of(request.subject))
    return await call(request)


# The cluster, rules, tokens and quotas


async def _test_rules(may: Permissions, request: pb.TestRulesRequest, call: Call) -> Any:
    """Every principal may ask about itself."""
    if request.principal and request.principal != may.principal.name:
        may.require(Operation.CLUSTER)
        return await call(request)
    principal, groups = may.principal.name, sorted(may.principal.groups)
    return await call(
        pb.TestRulesRequest(principal=principal, groups=groups, operation=request.operation, name=request.name)
    )


OWN_GUARDS: dict[str, Guard] = {
    "fetch_committed": _fetch_committed,
    "describe_group": _describe_group,
    "describe_topics": _describe_topics,
    "delete_topic": _delete_topic,
    "describe_cluster": _describe_cluster,
    "list_delayed": _list_delayed,
    "group_heartbeat": _group_heartbeat,
    "list_groups": _list_groups,
    "list_lags": _list_lags,
    "init_transactions": _init_transactions,
    "add_to_transaction": _add_to_transaction,
    "list_transactions": _list_transactions,
    "describe_transaction": _describe_transaction,
    "share_fetch": _share_fetch,
    "list_shares": _list_shares,
    "test_rules": _test_rules,
    "put_schema": _put_schema,
    "describe_schema": _describe_schema,
    "list_schemas": _list_schemas,
    "delete_schema": _delete_schema,
}
"""By the attribute of the method."""
