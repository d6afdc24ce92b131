"""How far a commit may go is asked of the partitions' owners: cheaply first, and for certain before
anything is refused.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ledgermq.errors import LedgerMQError, NotOwner, Unavailable
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.groups.ends import ASK_S_MAX, PartitionEnds
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import Topic
from ledgermq_offsets.served_offsets import EndWanted
from tests.virtual_time import run_virtual

TOPIC = Topic(7, "t", (1, 1, 2))
WANTED = [EndWanted("t", 7, partition) for partition in range(3)]


class Answering:
    """A broker that gives prepared answers, for ends that cost nothing and for those that are
    certain.
    """

    def __init__(
        self, durable: int | LedgerMQError, latest: int | LedgerMQError | None = None, wait_s: float = 0.0
    ) -> None:
        self.durable, self.latest, self.wait_s = durable, durable if latest is None else latest, wait_s
        self.asked: list[list[tuple[int, str]]] = []

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        self.asked.append([(query.partition, query.WhichOneof("at") or "") for query in request.queries])
        await asyncio.sleep(self.wait_s)
        answers = [self.latest if query.latest else self.durable for query in request.queries]
        return pb.ListOffsetsResponse(results=[_result(answer) for answer in answers])


def _result(answer: int | LedgerMQError) -> pb.OffsetResult:
    if isinstance(answer, LedgerMQError):
        return pb.OffsetResult(error=error_to_proto(answer))
    return pb.OffsetResult(offset=answer)


def ends_of(brokers: dict[str, Any], owners: dict[int, str]) -> PartitionEnds:
    catalog = Catalog()
    catalog.topics_by_id[TOPIC.id] = catalog.topics_by_name[TOPIC.name] = TOPIC

    def broker(bundle: int, named: str) -> tuple[str, BrokerApi]:
        address = named or owners[bundle]
        return address, cast(BrokerApi, brokers[address])

    return PartitionEnds(lambda: catalog, broker)


def asked(ends: PartitionEnds, *offsets: int) -> dict[tuple[int, int], int]:
    return run_virtual(lambda: ends.of(WANTED, {("t", partition): offset for partition, offset in enumerate(offsets)}))


def test_each_owner_is_asked_once_and_nothing_is_looked_for_in_the_store() -> None:
    one, two = Answering(10), Answering(20)
    assert asked(ends_of({"a": one, "b": two}, {1: "a", 2: "b"}), 10, 3, 20) == {(7, 0): 10, (7, 1): 10, (7, 2): 20}
    assert one.asked == [[(0, "durable"), (1, "durable")]]
    assert two.asked == [[(2, "durable")]]


def test_an_owner_that_knows_too_little_has_to_make_sure() -> None:
    one = Answering(10, latest=15)
    assert asked(ends_of({"a": one}, {1: "a", 2: "a"}), 12, 3, 99) == {(7, 0): 15, (7, 1): 10, (7, 2): 15}
    assert one.asked[1] == [(0, "latest"), (2, "latest")]


def test_a_zombies_word_is_not_taken_for_the_end() -> None:
    """It finds out that it was fenced as soon as it has to make sure, and names its successor."""
    zombie, successor = Answering(10, latest=NotOwner("fenced", owner="b")), Answering(11, latest=30)
    found = asked(ends_of({"a": zombie, "b": successor}, {1: "a", 2: "a"}), 12, 3, 9)
    assert found == {(7, 0): 30, (7, 1): 10, (7, 2): 10}


def test_ends_that_no_owner_can_give_are_left_out() -> None:
    silent, failing = Answering(10, wait_s=10 * ASK_S_MAX), Answering(Unavailable("later"))
    assert asked(ends_of({"a": silent, "b": failing}, {1: "a", 2: "b"}), 1, 1, 1) == {}
    low = Answering(10, latest=Unavailable("the store does not answer"))
    assert asked(ends_of({"a": low}, {1: "a", 2: "a"}), 12, 3, 9) == {(7, 1): 10, (7, 2): 10}, (
        "too low a bound is no answer"
    )


def test_a_topic_that_is_gone_has_no_end() -> None:
    ends = ends_of({"a": Answering(1)}, {1: "a", 2: "a"})
    assert run_virtual(lambda: ends.of([EndWanted("gone", 8, 0), EndWanted("t", 7, 5)], {})) == {}
