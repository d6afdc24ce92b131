"""Offsets of groups without members in a transaction of one call: committed with its records, or not at all. Virtual
time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

import ledgermq
from ledgermq import GroupOffset, TopicPartition, errors
from ledgermq.client.transactions.decisions import Decisions
from ledgermq.client.transactions.sending import group_offsets
from tests.broker.cluster import Cluster, in_cluster
from tests.e2e.test_client_takeover import client_of
from tests.e2e.test_send_once import stored

GROUP, READ = "billing", TopicPartition("read", 0)


async def topics(client: ledgermq.Client, count: int = 10) -> None:
    for topic in ("a", "b"):
        await client.create_topic(topic, 2)
    await client.create_topic("read", 1)
    async with client.producer() as producer:
        for number in range(count):
            producer.send("read", b"%d" % number)


async def committed(client: ledgermq.Client) -> int:
    """Return the group's offset; 0: none."""
    while True:
        try:
            found = await client.groups.describe(GROUP)
        except errors.UnknownGroup:
            return 0
        if READ not in found.staged:
            return found.committed[READ].stored.offset if READ in found.committed else 0
        await asyncio.sleep(0.05)


async def send(
    client: ledgermq.Client, name: str, offset: int, expect: int | None = None, value: bytes = b"1", **more: object
) -> ledgermq.SentOnce:
    offsets = [GroupOffset(GROUP, "read", 0, offset, expect)]
    return await client.transactions.send_once(name, [("a", value)], offsets=offsets, **more)  # type: ignore[arg-type]


@in_cluster("a:1", "b:1")
async def test_records_and_offsets_are_committed_together_once(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        assert not (await send(one, "p.0", 4, expect=0)).repeated
        assert await committed(one) == 4
        assert not (await send(one, "p.4", 6, expect=4, value=b"2")).repeated
        for client in (one, other):
            assert (await send(client, "p.0", 4, expect=0)).repeated, "though the group stands elsewhere by now"
        with pytest.raises(errors.TransactionIdReused):
            await send(one, "p.0", 5, expect=0)
        assert await committed(one) == 6
        only = [GroupOffset(GROUP, "read", 0, 8), GroupOffset("audit", "read", 0, 3), GroupOffset("audit", "a", 1, 0)]
        assert not (await one.transactions.send_once("p.6", [], offsets=only)).repeated
        assert await committed(one) == 8
        assert (await one.groups.describe("audit")).committed[READ].stored.offset == 3
        assert await stored(one) == [b"1", b"2"]


@in_cluster("a:1", "b:1")
async def test_of_two_programs_that_read_the_same_records_one_commits(cluster: Cluster) -> None:
    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        results = await asyncio.gather(
            *(send(client, f"twin.{at}", 4, expect=0) for at, client in enumerate((one, other))), return_exceptions=True
        )
        won = [each for each in results if isinstance(each, ledgermq.SentOnce)]
        lost = [each for each in results if not isinstance(each, ledgermq.SentOnce)]
        assert len(won) == 1, results
        assert isinstance(lost[0], errors.StaleAssignment | errors.TransactionAborted), results
        for at, client in enumerate((one, other)):
            if results[at] is lost[0]:
                with pytest.raises(errors.StaleAssignment, match="has committed offset 4 of read/0, not 0"):
                    await send(client, f"twin.{at}", 4, expect=0)
        assert await stored(one) == [b"1"]


@pytest.mark.parametrize(
    ("offsets", "error", "match"),
    [
        ([GroupOffset(GROUP, "read", 0, 2)], errors.CommitGoesBack, "offset 3 of read/0, and 2 is before it"),
        ([GroupOffset(GROUP, "read", 0, 4, expect=2)], errors.StaleAssignment, "not 2"),
        ([GroupOffset(GROUP, "read", 0, 11)], errors.OffsetOutOfRange, "beyond the end"),
        ([GroupOffset("held", "read", 0, 4)], errors.GroupNotEmpty, "only a member can commit"),
        ([GroupOffset(GROUP, "nothing", 0, 4)], errors.UnknownTopic, "nothing"),
        ([GroupOffset(GROUP, "read", 1, 4)], errors.UnknownPartition, "not 1"),
        ([GroupOffset(GROUP, "read", 0, 4)] * 2, errors.InvalidRequest, "twice"),
        ([GroupOffset(GROUP, "read", 0, -1)], errors.InvalidRequest, "the offset of group 'billing' is a number"),
        ([GroupOffset(GROUP, "read", 0, 2**63)], errors.InvalidRequest, "is a number"),
        ([GroupOffset(GROUP, "read", 2**31, 0)], errors.InvalidRequest, "the partition"),
        ([GroupOffset("", "read", 0, 0)], errors.InvalidGroupName, "at least one character"),
        ([GroupOffset(f"g{n}", "read", 0, 0) for n in range(1001)], errors.InvalidRequest, "1000 offsets"),
        ([GroupOffset("fine", "read", 0, 4), GroupOffset("held", "read", 0, 4)], errors.GroupNotEmpty, "held"),
    ],
)  # fmt: skip
@in_cluster("a:1", "b:1")
async def test_refused_offsets_leave_nothing(
    cluster: Cluster, offsets: Sequence[GroupOffset], error: type[errors.LedgerMQError], match: str
) -> None:
    async with client_of(cluster) as client, client.consumer("read", group="held") as consumer:
        await topics(client)
        await consumer.fetch(1, timeout=10)
        await send(client, "before", 3)
        for _ in range(2):
            with pytest.raises(error, match=match):
                await client.transactions.send_once("p", [("a", b"2")], offsets=offsets)
        assert await committed(client) == 3
        with suppress(errors.UnknownGroup):
            assert not (await client.groups.describe("fine")).committed
        assert not (await send(client, "p", 5, expect=3, value=b"3")).repeated, "the id is free for what is right"
        assert await stored(client) == [b"1", b"3"]


@in_cluster("a:1")
async def test_records_that_are_refused_take_the_offsets_back(cluster: Cluster) -> None:
    async with client_of(cluster) as client:
        await topics(client)
        with pytest.raises(errors.MessageTooLarge):
            await send(client, "p", 4, value=b"x" * 2_000_000)
        assert await committed(client) == 0
        await send(client, "p", 4, expect=0)
        assert await committed(client) == 4


@in_cluster("a:1", "b:1")
async def test_a_commit_between_reading_and_staging_fences(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch and the counter that were read do it, whether or not the program expects an offset."""
    true = group_offsets.stage_groups
    async with client_of(cluster) as client:
        await topics(client)
        await send(client, "before", 1)
        for expect in (1, None):

            async def late(*given: object) -> object:
                monkeypatch.setattr("ledgermq.client.transactions.once.stage_groups", true)
                topic_id = (await client.describe_topic("read")).topic_id
                refused = await client.groups.commit(GROUP, {READ: (topic_id, await committed(client) + 1)})
                assert not refused
                return await true(*given)  # type: ignore[arg-type]

            monkeypatch.setattr("ledgermq.client.transactions.once.stage_groups", late)
            with pytest.raises(errors.TransactionAborted, match="have changed since they were read"):
                await send(client, f"p.{expect}", 5, expect=expect)
        assert await committed(client) == 3
        with pytest.raises(errors.StaleAssignment):
            await send(client, "p.1", 5, expect=1)
        assert not (await send(client, "p.None", 5)).repeated
        assert await stored(client) == [b"1", b"1"]


@in_cluster("a:1", "b:1")
async def test_a_member_that_joins_meanwhile_begins_behind_the_transaction(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Decisions.end
    staged = asyncio.Event()

    async def slowly(self: Decisions, *given: object) -> object:
        staged.set()
        await asyncio.sleep(5)
        return await true(self, *given)  # type: ignore[arg-type]

    async with client_of(cluster) as one, client_of(cluster) as other:
        await topics(one)
        monkeypatch.setattr(Decisions, "end", slowly)
        sending = asyncio.create_task(send(one, "p", 4, expect=0))
        await staged.wait()
        async with other.consumer("read", group=GROUP) as consumer:
            [first, *_] = await consumer.fetch(1, timeout=60)
            assert first.offset == 4
            assert not (await sending).repeated
            with pytest.raises(errors.GroupNotEmpty):
                await send(one, "q", 6, expect=4)
        assert await stored(one) == [b"1"]


@pytest.mark.parametrize("seed", range(6))
def test_each_record_is_processed_once_by_twins_that_are_cut_anywhere_while_owners_die(seed: int) -> None:
    rng = random.Random(seed)

    async def one_step(client: ledgermq.Client, twin: str) -> bool:
        """Process the next records. Return False at the end."""
        begin = await committed(client)
        if begin == 12:
            return False
        end = min(12, begin + rng.randint(1, 4))
        records = [("a" if number % 2 else "b", b"%02d" % number) for number in range(begin, end)]
        offsets = [GroupOffset(GROUP, "read", 0, end, begin)]
        await client.transactions.send_once(f"{twin}.{begin}.{end}", records, offsets=offsets)
        return True

    async def work(cluster: Cluster, twin: str) -> None:
        while True:
            async with client_of(cluster, timeout_s=20.0) as client:
                step = asyncio.create_task(one_step(client, twin))
                await asyncio.sleep(rng.choice((0.005, 0.02, 0.1, 0.5, 3.0)))
                if rng.random() < 0.5:
                    step.cancel()
                await asyncio.wait([step])
                if not step.cancelled() and step.exception() is None and not step.result():
                    return
                if not step.cancelled() and (error := step.exception()) is not None:
                    assert isinstance(error, errors.TransactionError | errors.StaleAssignment | errors.RetriableError)

    @in_cluster("a:1", "b:1", "c:1")
    async def life(cluster: Cluster) -> None:
        async with client_of(cluster) as reader:
            await topics(reader, 12)
            workers = [asyncio.create_task(work(cluster, twin)) for twin in ("x", "y")]
            await asyncio.sleep(rng.choice((0.1, 1.0)))
            await cluster.stop(await cluster.owner_of("a", 0), graceful=False)
            await asyncio.gather(*workers)
            assert await stored(reader) == [b"%02d" % number for number in range(12)]

    life()
