"""Tables that all principals fill: one that fills its share is refused, and the others go on; also after a takeover.
In virtual time, with small tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from ledgermq.errors import ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.batches.records import SCHEMA, encode_batch
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.naming.exclusive_ids import exclusive_id
from ledgermq.protocol.naming.message_ids import MESSAGE_ID
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.exclusive.state.limits import HolderLimits
from ledgermq_broker.metrics.features.quotas import QuotaMetrics
from ledgermq_broker.queues.state.limits import ShareLimits
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.timed.state.limits import RECALL_TOPICS_MAX, TimerLimits
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_offsets.limits import GroupLimits
from tests.broker.access import RULES, change, token
from tests.broker.cluster import FAST_CONSTANTS, Cluster, batch_header, frame_of, in_cluster, read_all
from tests.broker.shared_groups import GROUPS, TOPICS, Caller, Fill, group_of, one_group_by_a_commit, refusal
from tests.broker.shared_queues import one_queue_by_a_member
from tests.broker.timer_calls import now_s, timed_frame, us_of
from tests.broker.transaction_calls import stage_frame
from tests.virtual_time import EPOCH_US

MOST = 16
"""Entries that each table takes: one principal alone gets half."""
WINDOW_MS = str(7 * 24 * 3600 * 1000)
SMALL: BrokerConstants = replace(
    FAST_CONSTANTS,
    limits=(
        TransactionLimits(ids_max=MOST, staged_batches_max=MOST, timeout_ms_max=900_000, ask_after_ms=900_000),
        TimerLimits(recalls_max=MOST),
        HolderLimits(partitions_max=MOST),
        GroupLimits(groups_max=MOST),
        ShareLimits(partitions_max=MOST),
    ),
)


def error_of(answer: object) -> pb.Error | None:
    if isinstance(answer, Exception):
        return error_to_proto(answer)  # type: ignore[arg-type]
    [result] = answer.results  # type: ignore[attr-defined]
    return result.error if result.HasField("error") else None


async def one_id(caller: Caller, n: int) -> pb.Error | None:
    headers = pa.array([[(MESSAGE_ID, caller.number(n))]], SCHEMA.field("headers").type)
    columns = [pa.array([None], f.type) for f in SCHEMA]
    columns[1], columns[2] = pa.array([b"v"], pa.binary()), headers
    columns[3], columns[4] = pa.array([EPOCH_US], SCHEMA.field("timestamp").type), pa.array([0], pa.int32())
    data = encode_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    frame = Frame(pb.ProduceHeader(batches=[batch_header(caller.topic, 0, data, 1)]), [data])
    return error_of(await caller.line.produce_once(frame))


async def one_transactional_id(caller: Caller, n: int) -> pb.Error | None:
    request = pb.InitTransactionsRequest(transactional_id=f"{caller.topic}-{n}")
    try:
        await caller.line.init_transactions(request)
    except ResourceExhausted as error:
        return error_to_proto(error)
    return None


async def one_staged_batch(caller: Caller, n: int) -> pb.Error | None:
    if caller.ref is None:
        name = f"{caller.topic}-staging"
        made = await caller.line.init_transactions(pb.InitTransactionsRequest(transactional_id=name))
        caller.ref = pb.TransactionRef(
            transactional_id=name,
            coordinator=made.coordinator,
            producer_id=made.producer_id,
            epoch=made.epoch,
            number=1,
        )
    frame = stage_frame(caller.ref, (caller.topic, 0, n, [b"v"]))

    async def frames() -> AsyncIterator[object]:
        yield frame

    [answer] = [answer async for answer in caller.line.stage(frames())]  # type: ignore[arg-type]
    return error_of(answer)


async def one_recall(caller: Caller, n: int) -> pb.Error | None:
    due_s = now_s() + 3600
    [sent] = (await caller.line.produce_delayed_once(timed_frame(caller.topic, 0, [(b"%d" % n, due_s)]))).results
    assert not sent.HasField("error"), sent
    request = pb.RecallDelayedRequest(
        topic=caller.topic, topic_id=sent.topic_id, partition=0, offset=sent.base_offset, due_us=us_of(due_s)
    )
    try:
        assert (await caller.line.recall_delayed(request)).outcome == pb.RECALLED
    except ResourceExhausted as error:
        return error_to_proto(error)
    return None


async def one_held_partition(caller: Caller, n: int) -> pb.Error | None:
    """Partition `n` of a topic that has enough of them: the first call says which change was seen last."""
    topic, id_ = f"{caller.topic}-many", exclusive_id(caller.number(n))
    [seen] = (
        await caller.line.hold_partitions(
            pb.HoldPartitionsRequest(partitions=[pb.WantedPartition(topic=topic, partition=n)])
        )
    ).holders
    wanted = pb.WantedPartition(topic=topic, partition=n, number=seen.number)
    [held] = (await caller.line.hold_partitions(pb.HoldPartitionsRequest(producer_id=id_, partitions=[wanted]))).holders
    return held.error if held.HasField("error") else None


TABLES: dict[str, Fill] = {
    "message_ids": one_id,
    "transactional_ids": one_transactional_id,
    "staged_batches": one_staged_batch,
    "recalls": one_recall,
    "held_partitions": one_held_partition,
    "groups": one_group_by_a_commit,
    "queue_partitions": one_queue_by_a_member,
}


async def callers(cluster: Cluster, address: str, tokens: dict[str, str]) -> tuple[Caller, Caller]:
    mallory, victim = (Caller(name, cluster.line(address, tokens[name])) for name in ("mallory", "victim"))
    return mallory, victim


async def tokens_of(cluster: Cluster) -> dict[str, str]:
    await change(
        cluster,
        grant=[
            f"allow user:{name} {operations} {topic}*"
            for name, topic in TOPICS.items()
            for operations in ("produce,consume,create,alter,delete", "transaction", "group")
        ],
    )
    drawn = {name: await token(cluster, name) for name in (*TOPICS, "root")}
    return {name: made.text for name, made in drawn.items()}


async def made_topics(cluster: Cluster, tokens: dict[str, str]) -> None:
    for name, topic in TOPICS.items():
        await cluster.create(topic, 1, tokens[name], dedup_window_ms=WINDOW_MS)
        await cluster.create(f"{topic}-many", 3 * MOST, tokens[name])


async def filled(caller: Caller, fill: Fill, begin: int = 0) -> tuple[int, pb.Error]:
    """Take entries until that is refused; return how many, and the refusal."""
    for n in range(begin, begin + 3 * MOST):
        error = await fill(caller, n)
        if error is not None:
            return n - begin, error
    raise AssertionError(f"{caller.name} was never refused")


@pytest.mark.parametrize("table", TABLES)
@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_one_principal_fills_its_share_and_the_others_go_on(cluster: Cluster, table: str) -> None:
    registry = CollectorRegistry()
    await cluster.stop("a:1")
    cluster.counts["b:1"] = [QuotaMetrics(registry)]
    await cluster.start("b:1")
    await cluster.settled()
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    fill = TABLES[table]
    mallory, victim = await callers(cluster, "b:1", tokens)
    taken, error = await filled(mallory, fill)
    assert taken == MOST // 2
    assert (error.code, error.exact_code, error.limit) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", table)
    assert error.retry_after_ms > 0
    assert "this principal has 8 " in error.message
    for n in range(2):
        assert await fill(victim, n) is None, "another principal goes on"
    root = cluster.line("b:1", tokens["root"])
    for name, entries in (("mallory", taken), ("victim", 2)):
        described = await root.list_quotas(pb.ListQuotasRequest(use_of=f"user:{name}"))
        assert described.use.used[table] == entries
    labels = {"principal": "user:mallory", "limit": table}
    assert registry.get_sample_value("ledgermq_quota_refusals_total", labels) == 1

    await cluster.stop("b:1", graceful=False)
    await cluster.start("c:1")
    await cluster.settled()
    again, other = await callers(cluster, "c:1", tokens)
    again.ref, other.ref = mallory.ref, victim.ref
    refused = await fill(again, taken)
    assert refused is not None, "the next owner counts the same"
    assert refused.limit == table
    assert await fill(other, 2) is None
    root = cluster.line("c:1", tokens["root"])
    described = await root.list_quotas(pb.ListQuotasRequest(use_of="user:mallory"))
    assert described.use.used[table] == taken


@pytest.mark.parametrize("table", TABLES)
@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_shares_grow_smaller_with_the_principals_and_leave_room_for_one_more(
    cluster: Cluster, table: str
) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    first, _ = await filled(mallory, TABLES[table])
    second, error = await filled(victim, TABLES[table])
    assert (first, second) == (MOST // 2, MOST // 4)
    assert error.limit == table


@pytest.mark.parametrize("table", [name for name in TABLES if name != "recalls"])
@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST)
async def test_without_rules_a_table_is_the_bound(cluster: Cluster, table: str) -> None:
    await made_topics(cluster, dict.fromkeys(TOPICS, ""))
    taken, error = await filled(Caller("mallory", cluster.line("a:1")), TABLES[table])
    assert taken == MOST
    assert (error.exact_code, error.limit) == ("", "")


@pytest.mark.parametrize("begin", GROUPS, ids=lambda each: str(each.__name__))
@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_each_way_to_begin_a_group_counts_to_its_principal(cluster: Cluster, begin: Fill) -> None:
    """Ten thousand groups of one principal kept all others from beginning one, for a week."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    taken, error = await filled(mallory, begin)
    assert (taken, error.exact_code, error.limit) == (MOST // 2, "QUOTA_EXCEEDED", "groups")
    for other in GROUPS:
        refused = await other(mallory, taken + 1)
        assert refused is not None, "there is no other way around it"
        assert refused.limit == "groups"
    assert await begin(victim, 0) is None
    root = cluster.line("a:1", tokens["root"])
    described = await root.list_quotas(pb.ListQuotasRequest(use_of="user:mallory"))
    assert described.use.used["groups"] == taken


@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_groups_that_no_member_has_joined_yet_count_too_and_go(cluster: Cluster) -> None:
    """A client of the Kafka protocol gets an id first, and joins with it: until then the group is in memory only."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)

    async def announced(caller: Caller, n: int) -> pb.Error | None:
        request = pb.JoinClassicGroupRequest(
            group=group_of(caller, n),
            protocol_type="consumer",
            protocols=[pb.ClassicProtocol(name="range")],
            session_timeout_ms=6_000,
            rebalance_timeout_ms=60_000,
            id_required=True,
        )
        return await refusal(caller.line.join_classic_group(request))

    taken, error = await filled(mallory, announced)
    assert (taken, error.exact_code, error.limit) == (MOST // 2, "QUOTA_EXCEEDED", "groups")
    assert await announced(victim, 0) is None
    await asyncio.sleep(7.0)
    taken, _ = await filled(mallory, announced, MOST)
    assert taken == MOST // 2, "the share is free again"


@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_a_group_that_is_deleted_frees_the_share_of_the_principal_that_began_it(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, _ = await callers(cluster, "a:1", tokens)
    taken, _ = await filled(mallory, one_group_by_a_commit)
    root = cluster.line("a:1", tokens["root"])
    await root.delete_group(pb.DeleteGroupRequest(group=group_of(mallory, 0)))
    assert await one_group_by_a_commit(mallory, taken) is None
    assert await one_group_by_a_commit(mallory, taken + 1) is not None


@in_cluster("a:1", bundles=2, **RULES)
async def test_guesses_of_a_principal_do_not_block_the_recall_by_the_sender(cluster: Cluster) -> None:
    """A recall of the same message as one of 16 topics of another principal, by that principal."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    due_s = now_s() + 60
    [sent] = (await victim.line.produce_delayed_once(timed_frame("orders", 0, [(b"pay", due_s)]))).results

    def recall(topic: pb.TopicInfo) -> pb.RecallDelayedRequest:
        return pb.RecallDelayedRequest(
            topic=topic.name, topic_id=topic.topic_id, partition=0, offset=sent.base_offset, due_us=us_of(due_s)
        )

    for n in range(RECALL_TOPICS_MAX):
        made = await cluster.create(f"mine-{n}", 1, tokens["mallory"])
        assert (await mallory.line.recall_delayed(recall(made))).outcome == pb.RECALLED
    with pytest.raises(ResourceExhausted, match="16 other topics"):
        await mallory.line.recall_delayed(recall(await cluster.create("mine-too", 1, tokens["mallory"])))
    own = pb.TopicInfo(name="orders", topic_id=sent.topic_id)
    assert (await victim.line.recall_delayed(recall(own))).outcome == pb.RECALLED
    await asyncio.sleep(120)
    assert await read_all(victim.line, "orders", 0) == [], "the message is not delivered"


@in_cluster("a:1", constants=SMALL, bundles=2, producer_states_max=MOST, **RULES)
async def test_new_producers_of_one_principal_do_not_push_out_those_of_others(cluster: Cluster) -> None:
    """The victim's next sequence was UNKNOWN_PRODUCER, so its batch in doubt failed."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)

    async def produced(caller: Caller, producer: int, sequence: int = 0) -> pb.Error | None:
        session = pb.ProducerSession(id=caller.number(producer), sequence=sequence, opened_slot=10_000)
        return error_of(await caller.line.produce_once(frame_of(caller.topic, 0, b"v", session=session)))

    assert await produced(victim, 0) is None
    taken, error = await filled(mallory, produced)
    assert (taken, error.exact_code, error.limit) == (MOST // 2, "QUOTA_EXCEEDED", "new_producers")
    assert await produced(mallory, 0, 1) is None, "producers that are known go on"
    assert await produced(victim, 0, 1) is None
    assert await produced(victim, 0, 1) is None, "and are recognized when they repeat a batch"
    assert await produced(victim, 1) is None
    session = pb.ProducerSession(id=mallory.number(99), opened_slot=10_000)
    timed = timed_frame("mine", 0, [(b"v", now_s() + 60)], session)
    refused = error_of(await mallory.line.produce_delayed_once(timed))
    assert refused is not None, "timed messages are no way around it"
    assert refused.limit == "new_producers"

    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    mallory, victim = await callers(cluster, "b:1", tokens)
    taken, error = await filled(mallory, produced, 1000)
    assert (taken, error.limit) == (MOST // 2, "new_producers"), "a takeover gives it one share more"
