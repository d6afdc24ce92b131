"""The list of callers is bounded, whatever they send, and forgets those that are gone."""

from __future__ import annotations

from time import process_time

import pytest

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq_broker.admission import connections
from ledgermq_broker.admission.connections import LISTED_MS, TEXT_MAX, TOPICS_MAX, Connections


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


def test_a_caller_stays_while_it_has_calls_and_some_minutes_more() -> None:
    clock = Clock()
    known = Connections(clock)
    first = known.begin_call("ipv4:10.0.0.1:7", "user:alice", "shop", "ledgermq-python/1")
    known.begin_call("ipv4:10.0.0.1:7", "user:bob", "", "")
    clock.now_ms += LISTED_MS + 1
    assert [each.principal for each in known.page(0, 10)[0]] == ["user:alice", "user:bob"]
    first.end_call(clock.now_ms)
    clock.now_ms += LISTED_MS
    assert len(known.page(0, 10)[0]) == 2
    clock.now_ms += 1
    assert [each.principal for each in known.page(0, 10)[0]] == ["user:bob"]


def test_pages_go_by_number() -> None:
    known = Connections(Clock())
    for number in range(5):
        known.begin_call(f"ipv4:10.0.0.1:{number}", "anonymous", "", "")
    known.begin_call("ipv4:10.0.0.1:0", "anonymous", "", "")  # again: the same one
    page, more = known.page(0, 3)
    assert ([each.number for each in page], more) == ([1, 2, 3], True)
    page, more = known.page(3, 3)
    assert ([each.number for each in page], more) == ([4, 5], False)
    assert known.page(0, 1)[0][0].calls == 2


def test_what_a_caller_sends_is_bounded() -> None:
    known = Connections(Clock())
    caller = known.begin_call("ipv4:10.0.0.1:1", "anonymous", "", "x" * 10_000)
    batches = [pb.ProduceBatch(topic=f"{number}" * 10_000) for number in range(50)]
    caller.note("produce_once", Frame(pb.ProduceHeader(batches=batches), []))
    parts = [pb.FetchPartition(topic=f"t{number}") for number in range(50)]
    caller.note("fetch", pb.FetchRequest(partitions=parts))
    caller.note("list_offsets", pb.ListOffsetsRequest())
    assert len(caller.client) == TEXT_MAX
    assert len(caller.produces) == len(caller.reads) == TOPICS_MAX
    assert max(map(len, caller.produces)) == TEXT_MAX


def test_the_number_of_callers_is_bounded() -> None:
    known = Connections(Clock())
    for number in range(connections.CALLERS_MAX + 10):
        known.begin_call(f"ipv4:10.0.0.1:{number}", "anonymous", "", "")
    assert len(known) == connections.CALLERS_MAX
    assert known.page(0, 1)[0][0].number == 11, "the one whose last call began first is forgotten first"


def test_a_principal_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes up a client id for each of its calls; the calls of others began long before."""
    monkeypatch.setattr(connections, "CALLERS_MAX", 5)
    known = Connections(Clock())
    for name in ("alice", "bob"):
        known.begin_call("ipv4:10.0.0.1:7", f"user:{name}", "", "")
    for number in range(20):
        known.begin_call("ipv4:10.0.0.2:7", "user:mallory", f"made-up-{number}", "")
    found = [(each.principal, each.client_id) for each in known.page(0, 10)[0]]
    assert found == [
        ("user:alice", ""),
        ("user:bob", ""),
        *(("user:mallory", f"made-up-{number}") for number in (17, 18, 19)),
    ]


def test_more_callers_than_are_listed_cost_little_more_each() -> None:
    """Kafka clients have a connection to each broker: where there are more than the list takes, each request of one
    that was dropped puts it in again. A look through the whole list took 100 times as long as a call of one that is in.
    """
    known = Connections(Clock())

    def took_s(first: int) -> float:
        begun_s = process_time()
        for number in range(first, first + 500):
            known.begin_call(f"kafka:10.0.0.1:{number}", "anonymous", "", "").end_call(0)
        return process_time() - begun_s

    for first in range(0, connections.CALLERS_MAX, 500):
        took_s(first)
    listed_s = min(took_s(0) for _ in range(5))
    dropped_s = min(took_s(10_000 + 500 * turn) for turn in range(5))
    assert dropped_s < 30 * listed_s


def test_principals_that_have_no_caller_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CALLERS_MAX", 3)
    clock = Clock()
    known = Connections(clock)
    for number in range(9):
        known.begin_call("ipv4:10.0.0.1:7", f"user:u{number}", "", "").end_call(clock.now_ms)
    known.begin_call("ipv4:10.0.0.1:7", "user:u6", "", "").end_call(clock.now_ms)
    known.begin_call("ipv4:10.0.0.1:7", "user:u9", "", "").end_call(clock.now_ms)
    assert [each.principal for each in known.page(0, 10)[0]] == ["user:u6", "user:u8", "user:u9"]
    assert len(known) == len(known._callers) == 3
    clock.now_ms += LISTED_MS + 1
    assert known.page(0, 10) == ([], False)
    assert len(known) == len(known._callers) == 0
