"""Commits go one at a time, those that come meanwhile together, and no caller's cancellation takes
another's commit with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from ledgermq import errors
from ledgermq.client.groups.committing.committer import Committer, Wish
from ledgermq.client.groups.holding.holding import Holding
from ledgermq.client.messages.descriptions import TopicPartition
from ledgermq.offset_stores.contract import GivenPartition, OffsetEntry, StoredOffset
from tests.virtual_time import virtual_in


class SlowStore:
    """Takes a second for each commit; `refuse` and `fail` say what becomes of the next."""

    def __init__(self) -> None:
        self.commits: list[list[OffsetEntry]] = []
        self.at_once = 0
        self.refuse: dict[TopicPartition, errors.LedgerMQError] = {}
        self.fail: BaseException | None = None

    async def load(self, group: str, partitions: Sequence[GivenPartition]) -> dict[TopicPartition, StoredOffset]:
        raise AssertionError("commits load nothing")

    async def commit(self, group: str, entries: Sequence[OffsetEntry]) -> Mapping[TopicPartition, errors.LedgerMQError]:
        self.at_once += 1
        assert self.at_once == 1
        self.commits.append(list(entries))
        await asyncio.sleep(1)
        self.at_once -= 1
        if self.fail is not None:
            raise self.fail
        return self.refuse

    def offsets(self) -> list[dict[int, int]]:
        return [{entry.given.partition.partition: entry.offset for entry in commit} for commit in self.commits]


def holding(partition: int, epoch: int = 7) -> Holding:
    made = Holding(GivenPartition(TopicPartition("t", partition), 1, epoch), lambda _: None, lambda *_: None)
    made.load(0, None)
    return made


@asynccontextmanager
async def two_partitions() -> AsyncIterator[tuple[SlowStore, Committer, Holding, Holding]]:
    store = SlowStore()
    committer = Committer(store, "g", 5.0)
    yield store, committer, holding(0), holding(1)
    await committer.close()


with_two_partitions = virtual_in(two_partitions, "store", "committer", "one", "two")


@with_two_partitions
async def test_what_comes_while_one_is_on_its_way_goes_together(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(committer.commit({one: Wish(1)}))
        await asyncio.sleep(0.5)
        for offset in (2, 5, 3):
            tasks.create_task(committer.commit({one: Wish(offset)}))
        tasks.create_task(committer.commit({two: Wish(9)}))
    assert store.offsets() == [{0: 1}, {0: 5, 1: 9}]
    assert (one.committed, two.committed) == (5, 9)
    assert asyncio.get_running_loop().time() == pytest.approx(2)


@with_two_partitions
async def test_counters_grow_with_every_attempt(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    store.fail = errors.Unavailable("not now")
    with pytest.raises(errors.Unavailable):
        await committer.commit({one: Wish(1)})
    store.fail = None
    await committer.commit({one: Wish(1)})
    await committer.commit({one: Wish(1)})
    await committer.commit({one: Wish(1, "other words")})
    assert [entry.counter for commit in store.commits for entry in commit] == [1, 2, 3], (
        "what is stored is not sent again"
    )


@with_two_partitions
async def test_each_hears_of_its_own_partitions_only(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    store.refuse = {one.partition: errors.StaleAssignment("gone")}
    first, second = await asyncio.gather(committer.commit({one: Wish(1)}), committer.commit({two: Wish(2)}))
    assert isinstance(first[one.partition], errors.StaleAssignment)
    assert second == {}
    assert (one.refused is not None, one.committed, two.committed) == (True, 0, 2)
    one.progress.hand_out(0, 5)
    one.progress.finish_through(5)
    assert one.to_commit is None, "no automatic commit tries that again"


@with_two_partitions
async def test_a_cancelled_caller_takes_no_other_commit_along(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    first = asyncio.create_task(committer.commit({one: Wish(1)}))
    await asyncio.sleep(0.5)
    waiting = asyncio.create_task(committer.commit({one: Wish(2)}))
    other = asyncio.create_task(committer.commit({two: Wish(3)}))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    assert await other == {}
    assert store.offsets() == [{0: 1}, {0: 2, 1: 3}]


@with_two_partitions
async def test_a_store_that_hangs_is_unavailable_in_time(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    committer._timeout_s = 0.5
    with pytest.raises(errors.Unavailable, match="may or may not"):
        await committer.commit({one: Wish(1)})


@with_two_partitions
async def test_closing_fails_what_was_not_answered(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    first = asyncio.create_task(committer.commit({one: Wish(1)}))
    await asyncio.sleep(0.5)
    second = asyncio.create_task(committer.commit({two: Wish(1)}))
    await asyncio.sleep(0)
    await committer.close()
    for each in (first, second):
        with pytest.raises(errors.Unavailable):
            await each


@with_two_partitions
async def test_a_bug_of_the_store_reaches_who_commits(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    store.fail = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await committer.commit({one: Wish(1)})
    store.fail = None
    assert await committer.commit({one: Wish(1)}) == {}


@with_two_partitions
async def test_the_refusal_of_an_earlier_epoch_is_not_taken_for_one_of_the_present(
    store: SlowStore, committer: Committer, one: Holding, two: Holding
) -> None:
    """The member has lost the partition, and has it again, while the first commit of both is under way."""
    again = holding(0, epoch=9)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(committer.commit({two: Wish(1)}))
        await asyncio.sleep(0.5)
        present = tasks.create_task(committer.commit({again: Wish(4)}))
        former = tasks.create_task(committer.commit({one: Wish(3)}))
        await asyncio.sleep(1)
        store.refuse = {one.partition: errors.StaleAssignment("epoch 7 is over")}
        await asyncio.sleep(0.75)
        store.refuse = {}
    assert store.offsets() == [{1: 1}, {0: 3}, {0: 4}]
    assert isinstance(former.result()[one.partition], errors.StaleAssignment)
    assert present.result() == {}
    assert (one.refused is None, again.refused, again.committed) == (False, None, 4)
