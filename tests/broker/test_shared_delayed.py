"""No principal has so many delayed messages wait that others cannot send one. In virtual time, with small bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_broker.metrics.features.quotas import QuotaMetrics
from ledgermq_broker.settings.constants import BrokerConstants
from ledgermq_broker.timed.held import Held
from ledgermq_broker.timed.state.limits import TimerLimits
from ledgermq_broker.timed.state.sizes import BLOCK_BYTES, INTAKE_ROW_BYTES, NOTHING
from ledgermq_broker.timed.taking_in import room
from ledgermq_broker.timed.taking_in.intake import Blocks, Intake
from tests.broker.access import RULES
from tests.broker.cluster import FAST_CONSTANTS, Cluster, in_cluster, read_all
from tests.broker.shared_delayed import (
    AHEAD_S,
    VALUE,
    WAYS,
    began,
    ended,
    message,
    one_delayed,
    one_delayed_that_is_committed,
    one_delayed_that_is_staged,
    staged,
)
from tests.broker.shared_groups import TOPICS, Caller, Fill, refusal
from tests.broker.test_shared_tables import callers, filled, made_topics, tokens_of
from tests.broker.timer_calls import now_s, served, timed_frame, us_of
from tests.waiting import until

INDEX_BYTES = BLOCK_BYTES + INTAKE_ROW_BYTES
"""What one message takes in the index."""
MOST_INDEX, MOST_BYTES = 16 * INDEX_BYTES, 20_000
TABLES = {"delayed_bytes": MOST_BYTES, "delayed_index_bytes": MOST_INDEX}


def constants_of(table: str) -> BrokerConstants:
    bound = "waiting_bytes_max" if table == "delayed_bytes" else "index_bytes"
    return replace(FAST_CONSTANTS, limits=(TimerLimits(**{bound: TABLES[table]}),))


BYTES = in_cluster("a:1", constants=constants_of("delayed_bytes"), bundles=2, **RULES)
INDEX = in_cluster("a:1", constants=constants_of("delayed_index_bytes"), bundles=2, **RULES)


async def used(cluster: Cluster, tokens: dict[str, str], name: str = "mallory") -> dict[str, int]:
    [address] = cluster.network.addresses()
    described = await cluster.line(address, tokens["root"]).list_quotas(pb.ListQuotasRequest(use_of=f"user:{name}"))
    return {table: described.use.used[table] for table in TABLES}


async def in_memory(cluster: Cluster) -> None:
    """Wait until all that is durable is in memory, and nothing is staged and committed."""
    await until(lambda: all(part.held.is_ready.is_set() for part in served(cluster).values()), 60)
    await asyncio.sleep(2.0)


@pytest.mark.parametrize("way", WAYS, ids=lambda each: str(each.__name__))
@pytest.mark.parametrize("table", TABLES)
def test_each_way_counts_and_others_go_on(table: str, way: Fill) -> None:
    """One principal could fill 64 GiB, or with 170,000 small batches the index, and all others were refused."""

    @in_cluster("a:1", constants=constants_of(table), bundles=2, **RULES)
    async def run(cluster: Cluster) -> None:
        registry = CollectorRegistry()
        await cluster.stop("a:1")
        cluster.counts["b:1"] = [QuotaMetrics(registry)]
        await cluster.start("b:1")
        await cluster.settled()
        tokens = await tokens_of(cluster)
        await made_topics(cluster, tokens)
        mallory, victim = await callers(cluster, "b:1", tokens)
        taken, error = await filled(mallory, way)
        assert (error.code, error.exact_code, error.limit) == ("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED", table)
        assert error.retry_after_ms > 0
        has = (await used(cluster, tokens))[table]
        most = TABLES[table] // 2
        assert most - 2 * has // taken < has <= most + 100 * taken, f"{has} bytes of {taken} messages, at most {most}"
        for other in WAYS:
            refused = await other(mallory, 90)
            assert refused is not None, "there is no other way around it"
            assert refused.limit == table
        for n, other in enumerate(WAYS):
            if n < 2:
                assert await other(victim, n) is None, "another principal goes on"
        assert registry.get_sample_value(
            "ledgermq_quota_refusals_total", {"principal": "user:mallory", "limit": table}
        ) == 1 + len(WAYS)

        await in_memory(cluster)
        before = await used(cluster, tokens)
        await cluster.stop("b:1", graceful=False)
        await cluster.start("c:1")
        await cluster.settled()
        await in_memory(cluster)
        assert await used(cluster, tokens) == before, "the next owner counts the same"
        again, other_one = await callers(cluster, "c:1", tokens)
        refused = await one_delayed(again, taken)
        assert refused is not None
        assert refused.limit == table
        assert await one_delayed(other_one, 2) is None

    run()


def _no_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room, "is_above_share", lambda own, more, free: False)


def _one_share_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Held, "size_of", lambda self, principal: self.waiting.sizes.total)


def _what_is_staged_does_not_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(room, "staged_in", lambda opening, catalog, principal: (NOTHING, NOTHING))
    patch.setattr("ledgermq_broker.timed.partition.staged_in", room.staged_in)


def _what_is_committed_counts_to_none(patch: pytest.MonkeyPatch) -> None:
    real = Intake.blocks
    patch.setattr(Intake, "blocks", lambda self, batches, principals: real(self, batches, [0] * len(principals)))


def _completions_are_judged(patch: pytest.MonkeyPatch) -> None:
    real = Intake.blocks

    def blocks(self: Intake, batches: Any, principals: Any) -> Blocks:
        self.check_room(batches, principals[0])
        return real(self, batches, principals)

    patch.setattr(Intake, "blocks", blocks)


@pytest.mark.parametrize(
    "plant",
    [
        _no_share,
        _one_share_for_all,
        _what_is_staged_does_not_count,
        _what_is_committed_counts_to_none,
        _completions_are_judged,
    ],
    ids=lambda each: str(each.__name__).strip("_"),
)
def test_a_mistake_is_seen(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_commit_is_complete_although_others_have_left_less_than_its_share()


@BYTES
async def test_what_moves_to_ranges_counts_until_it_is_delivered(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    taken = 0
    while await refusal(mallory.line.produce_delayed_once(timed_frame("mine", 0, [message(400)]))) is None:
        taken += 1
    assert await refusal(victim.line.produce_delayed_once(timed_frame("orders", 0, [message(400)]))) is None
    first = await used(cluster, tokens)
    await asyncio.sleep(150)
    [part] = served(cluster).values()
    assert part.held.waiting.rows == 0, "all of it is in ranges"
    moved = await used(cluster, tokens)
    assert moved["delayed_index_bytes"] == 0
    assert len(VALUE) * taken < moved["delayed_bytes"] <= first["delayed_bytes"] + 100 * taken
    assert part.timers.waiting_bytes == sum(
        [(await used(cluster, tokens, name))["delayed_bytes"] for name in TOPICS]
    ), "blocks of two principals are not put together"
    await cluster.stop("a:1", graceful=False)
    await cluster.start("b:1")
    await cluster.settled()
    await in_memory(cluster)
    assert await used(cluster, tokens) == moved, "the next owner counts the same"
    again, _ = await callers(cluster, "b:1", tokens)
    more, error = await filled(again, one_delayed)
    assert more <= 3, "blocks that are put together take less"
    assert error.limit == "delayed_bytes"
    await asyncio.sleep(450)
    assert await used(cluster, tokens) == dict.fromkeys(TABLES, 0)
    assert await one_delayed(again, 0) is None
    assert len(await read_all(again.line, "mine", 0)) == taken + more


@INDEX
async def test_ranges_of_one_principal_that_are_due_at_once_keep_out_no_other(cluster: Cluster) -> None:
    """What waits for later leaves the index, and all of it comes back before its minute: more than the bound."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    due_s = now_s() + 700
    taken = 0
    for _ in range(3):
        while await refusal(mallory.line.produce_delayed_once(timed_frame("mine", 0, [(b"x", due_s)] * 100))) is None:
            taken += 100
        await asyncio.sleep(150)
    [part] = served(cluster).values()
    assert part.held.waiting.rows == 0, "all of it is in ranges"
    await asyncio.sleep(due_s - now_s() - 2)
    assert part.held.waiting.rows == taken
    assert part.held.waiting.index_bytes > MOST_INDEX
    assert (error := await one_delayed(mallory, 0)) is not None
    assert error.limit == "delayed_index_bytes", "its own share is more than taken"
    assert await one_delayed(victim, 0) is None
    assert await one_delayed_that_is_committed(victim, 1) is None
    await asyncio.sleep(AHEAD_S + 10)
    assert await used(cluster, tokens) == dict.fromkeys(TABLES, 0)
    assert len(await read_all(mallory.line, "mine", 0)) == taken
    assert len(await read_all(victim.line, "orders", 0)) == 2


@INDEX
async def test_delivered_recalled_and_removed_messages_free_the_share_at_their_time(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, _ = await callers(cluster, "a:1", tokens)
    due_s = now_s() + AHEAD_S
    [sent] = (await mallory.line.produce_delayed_once(timed_frame("mine", 0, [(VALUE, due_s)]))).results
    request = pb.RecallDelayedRequest(
        topic="mine", topic_id=sent.topic_id, offset=sent.base_offset, due_us=us_of(due_s)
    )
    assert (await mallory.line.recall_delayed(request)).outcome == pb.RECALLED
    taken, _ = await filled(mallory, one_delayed)
    assert taken == MOST_INDEX // INDEX_BYTES // 2 - 1, "one that is recalled counts until its time"
    await asyncio.sleep(AHEAD_S + 5)
    assert await used(cluster, tokens) == dict.fromkeys(TABLES, 0)
    taken, _ = await filled(mallory, one_delayed)
    assert taken == MOST_INDEX // INDEX_BYTES // 2
    await mallory.line.delete_topic(pb.DeleteTopicRequest(name="mine"))
    await asyncio.sleep(AHEAD_S + 5)
    assert await used(cluster, tokens) == dict.fromkeys(TABLES, 0)


@INDEX
async def test_a_commit_is_complete_although_others_have_left_less_than_its_share(cluster: Cluster) -> None:
    """It is judged when it is staged: a committed transaction that is not completed keeps others waiting."""
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, victim = await callers(cluster, "a:1", tokens)
    ref = await began(mallory, 0)
    taken = 0
    while taken < MOST_INDEX // INDEX_BYTES and await staged(mallory, ref, taken) is None:
        taken += 1
    assert taken == MOST_INDEX // INDEX_BYTES // 2
    assert (await used(cluster, tokens))["delayed_index_bytes"] == MOST_INDEX // 2
    others, error = await filled(victim, one_delayed)
    assert (others, error.limit) == (taken // 2, "delayed_index_bytes")
    assert await ended(mallory, ref, pb.COMMITTED, taken) == pb.COMMITTED
    await in_memory(cluster)
    assert not any(part.participant.staged_batches for part in cluster.brokers["a:1"].transactions.served())
    assert (await used(cluster, tokens))["delayed_index_bytes"] == MOST_INDEX // 2, "it waits now, and counts the same"
    await asyncio.sleep(AHEAD_S)
    assert len(await read_all(mallory.line, "mine", 0)) == taken


@INDEX
async def test_an_abort_frees_what_was_staged(cluster: Cluster) -> None:
    tokens = await tokens_of(cluster)
    await made_topics(cluster, tokens)
    mallory, _ = await callers(cluster, "a:1", tokens)
    taken, _ = await filled(mallory, one_delayed_that_is_staged)
    for n in range(taken):
        ref = await began(mallory, n)  # of the next epoch, which ends the transaction before
        assert ref.epoch > 0
    await until(lambda: _is_free(cluster, tokens), 60)
    assert await one_delayed(mallory, 0) is None


async def _is_free(cluster: Cluster, tokens: dict[str, str]) -> bool:
    return (await used(cluster, tokens))["delayed_index_bytes"] == 0


@in_cluster("a:1", constants=constants_of("delayed_index_bytes"), bundles=2)
async def test_without_rules_the_bound_is_all_there_is(cluster: Cluster) -> None:
    await made_topics(cluster, dict.fromkeys(TOPICS, ""))
    taken, error = await filled(Caller("mallory", cluster.line("a:1")), one_delayed)
    assert taken == MOST_INDEX // INDEX_BYTES + 1, "what begins below the bound passes"
    assert (error.exact_code, error.limit) == ("", "")
