"""A query's progress is told to brokers that answer, sooner or later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

import ledgermq
from ledgermq import TopicPartition
from ledgermq.errors import CommitGoesBack, LedgerMQError, Unavailable
from ledgermq_spark.source.streaming.positions import Position, TopicPosition
from ledgermq_spark.source.streaming.servers import Progress
from tests.virtual_time import run_virtual, virtual


class Brokers:
    """`told`: what they took.

    They answer from the call after `away` on; `refusals`: what the first of these answers say of
    partition 1.
    """

    def __init__(self, away: int, *refusals: LedgerMQError) -> None:
        self.away = away
        self.refusals = refusals
        self.calls = 0
        self.told: list[int] = []

    async def commit(
        self, group: str, offsets: Mapping[TopicPartition, tuple[int, int]]
    ) -> Mapping[TopicPartition, LedgerMQError]:
        self.calls += 1
        if self.calls <= self.away:
            raise Unavailable("no broker answers")
        self.told.append(offsets[TopicPartition("t", 0)][1])
        answered = self.calls - self.away - 1
        return {TopicPartition("t", 1): self.refusals[answered]} if answered < len(self.refusals) else {}

    async def __aenter__(self) -> SimpleNamespace:
        return SimpleNamespace(groups=self)

    async def __aexit__(self, *_: object) -> None:
        pass


def at(offset: int) -> Position:
    return Position("c", {"t": TopicPosition(1, {0: offset})})


@virtual
async def test_what_brokers_did_not_take_is_told_again_though_the_query_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brokers = Brokers(away=5)
    monkeypatch.setattr(ledgermq, "connect", lambda servers, **_: brokers)
    progress = Progress("broker:1", "job")
    progress.reached(at(7))
    await asyncio.sleep(4.5)
    assert (brokers.calls, brokers.told) == (5, []), "once a second"
    await asyncio.sleep(100)
    assert (brokers.calls, brokers.told) == (6, [7]), "and once only"
    progress.reached(at(8))
    await asyncio.sleep(1)
    progress.reached(at(9))
    await progress.close()
    assert brokers.told == [7, 8, 9]


def test_what_time_cures_for_one_partition_is_told_again_though_the_query_stands_still(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    brokers = Brokers(0, *[Unavailable("its end is not known at present")] * 5, CommitGoesBack("9 is committed"))
    monkeypatch.setattr(ledgermq, "connect", lambda servers, **_: brokers)

    async def main() -> None:
        progress = Progress("broker:1", "job")
        progress.reached(at(7))
        await asyncio.sleep(4.5)
        assert brokers.calls == 5, "once a second"
        await asyncio.sleep(100)
        assert brokers.calls == 6, "and no more: what is refused for good is refused again"
        await progress.close()
        assert brokers.calls == 6

    run_virtual(main)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "its end is not known at present",
        "9 is committed",
    ]
