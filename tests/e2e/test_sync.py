"""The synchronous client: the same results and errors as the asynchronous one, from plain threads,
and no leftover threads.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import ledgermq
import ledgermq.sync
from infra.internal_names import INTERNAL
from ledgermq import errors
from ledgermq.sources import Sources
from tests.e2e.sync_clients import names, sync_client
from tests.waiting import wait_until


def parameters_of(function: Callable[..., object]) -> list[str]:
    """Without those that tests/unit/test_sync_client.py names as different."""
    return [name for name in inspect.signature(function).parameters if name not in ("on_progress", "expect_end")]


client = pytest.fixture(sync_client)


@pytest.mark.parametrize(
    "name",
    [
        "Client",
        "Producer",
        "Consumer",
        "GroupConsumer",
        "Queue",
        "QueueAdmin",
        *("Table", "TableAdmin"),
        "Transactions",
        "Transaction",
        "TransactionClient",
    ],
)
def test_both_clients_have_the_same_names(name: str) -> None:
    def public(kind: type) -> dict[str, list[str]]:
        found = {n: m for base in reversed(kind.__mro__) for n, m in vars(base).items()}
        members = {
            n: m
            for n, m in found.items()
            if not n.startswith("_") and n not in ("refused", "add_row", "due_us", "check_conditional", "tracing")
        }
        return {n: parameters_of(m) if inspect.isfunction(m) else [] for n, m in members.items()}

    plain, asynchronous = public(getattr(ledgermq.sync, name)), public(getattr(ledgermq, name))
    only_sync = {
        "Client": {"listen", "unanswered_records"},
        "Producer": {"wait_for", "hand_over", "closed"},
        "GroupConsumer": {"inner", "drop_rewound"},
        "Queue": {"closed", "settings", "topics", "group", "member_id", "expired", "filtered", "dead_lettered"},
        "Table": {"topic", "caught_up", "closed"},
        "Transactions": {"closed"},
        "Transaction": {"wait_for", "hand_over", "state", "failure"},
    }.get(name, set())
    only_async = {  # the last ones serve programs that encode and number batches by themselves
        "Client": {"open_sessions", "resumed_producer"},
        "Producer": {
            "has_ended",
            "warn_of_lost_records",
            "wait_for_room",
            "send_encoded",
            "settle",
            "start_over",
            "raise_unseen_calls",
        },
        "Consumer": {"expire"},
        "Queue": {"say", "refuse"},
        "GroupConsumer": {"expire"},
        "Transaction": {
            "wait_for_room",
            "settings",
            "closed",
            "check_open",
            "condemn",
            "stage_entries",
            "note_failure",
            "release",
            "resolved",
        },
    }.get(name, set())
    assert plain.keys() - only_sync == asynchronous.keys() - only_async
    assert {n: plain[n] for n in plain.keys() & asynchronous.keys()} == {
        n: asynchronous[n] for n in plain.keys() & asynchronous.keys()
    }


def test_what_a_client_has_is_there_in_both(client: ledgermq.sync.Client) -> None:
    """Public attributes of the instances, which no class shows; and what these have in their turn."""

    def public(of: object) -> dict[str, object]:
        return {name: getattr(of, name) for name in dir(of) if not name.startswith("_")}

    def parameters(of: object) -> dict[str, list[str]]:
        return {
            name: parameters_of(member)
            for name, member in public(of).items()
            if inspect.ismethod(member) and f"{type(of).__name__}.{name}" not in INTERNAL
        }

    inner = client._inner
    parts = {name for name, value in public(inner).items() if not callable(value)}
    assert "groups" in parts
    assert parts <= public(client).keys()
    for name in parts:
        assert parameters(getattr(client, name)) == parameters(getattr(inner, name)), name


def test_groups_are_administered(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer() as producer:
        producer.send("t", "a").result(30)
    assert client.groups.list() == []
    with client.consumer("t", group="g") as consumer:
        [message] = consumer.fetch(timeout=30)
        message.ack()
        consumer.commit()
    assert [group.name for group in client.groups.list()] == ["g"]
    partition = ledgermq.TopicPartition("t", 0)
    assert client.groups.lag("g")[partition].messages == 0
    planned = client.groups.plan_reset("g", "earliest")
    assert client.groups.reset("g", planned) == {}
    assert client.groups.lag("g")[partition].messages == 1
    client.groups.delete("g")
    with pytest.raises(ledgermq.errors.UnknownGroup):
        client.groups.describe("g")


def test_produce_and_consume(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 2)
    with client.producer() as producer:
        result = producer.send(
            "t", "value", key="key", headers={"a": "1"}, tag="tag", timestamp=datetime(2024, 1, 1, tzinfo=UTC)
        ).result()
        assert result.offset == 0
        deliveries = producer.send_many("t", [ledgermq.Record(str(n), key="key") for n in range(25_000)])
        producer.flush()
        assert [delivery.result().offset for delivery in deliveries[-3:]] == [24_998, 24_999, 25_000]
        assert all(delivery.done() and delivery.exception() is None for delivery in deliveries)
        (batch,) = producer.send_batch(
            "t", pa.RecordBatch.from_pydict({"value": ["x", "y"]}), partition=result.partition
        )
        assert batch.base_offset == 25_001
    with client.consumer("t") as consumer:
        first = next(consumer)
        assert (first.key, first.value, first.headers, first.tag) == (b"key", b"value", (("a", b"1"),), "tag")
        assert [int(next(consumer).value or b"") for _ in range(25_000)] == list(range(25_000))
        assert consumer.position(result.partition) == 25_001
        assert [message.value for message in consumer.fetch()] == [b"x", b"y"]
        assert consumer.fetch(timeout=0.05) == []
        assert consumer.positions() == consumer.end_offsets()


def test_positions_speak_of_what_the_program_has_had(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer() as producer:
        producer.send_many("t", [str(n) for n in range(100)])
    with client.consumer("t") as consumer:
        assert [next(consumer).offset for _ in range(10)] == list(range(10))
        assert consumer.position(0) == consumer.positions()[ledgermq.TopicPartition("t", 0)] == 10
        assert [message.offset for message in consumer.fetch(5)] == [10, 11, 12, 13, 14]
        table = consumer.fetch_arrow(10)
        assert table["offset"].to_pylist() == list(range(15, 25))
        assert next(consumer).offset == 25
        consumer.seek(90, partition=0)
        assert next(consumer).offset == 90


def test_errors_reach_the_caller(client: ledgermq.sync.Client) -> None:
    with pytest.raises(errors.UnknownTopic):
        client.describe_topic("nope")
    with pytest.raises(errors.InvalidConfig, match="linger_ms"):
        client.producer(linger=5)
    client.create_topic("t", 1, {"max.message.bytes": 100})
    with client.producer() as producer:
        with pytest.raises(errors.InvalidRecord):
            producer.send("t", 5)  # type: ignore[arg-type]
        large = producer.send("t", b"x" * 200)
        with pytest.raises(errors.MessageTooLarge):
            large.result()
        assert producer.send("t", b"fine").result().offset == 0
        producer.send("t", b"x" * 200)
        with pytest.raises(errors.MessageTooLarge):
            producer.flush()


def test_a_full_buffer_blocks_or_fails(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1)
    with client.producer(buffer_bytes_max=100_000) as producer:
        for _ in range(2000):
            producer.send("t", b"x" * 1000)
    with client.producer(buffer_bytes_max=3000, when_full="fail", linger_ms=1000) as producer:
        with pytest.raises(errors.ResourceExhausted):
            _ = [producer.send("t", b"x" * 1000) for _ in range(10)]
        producer.flush()
    assert sum(client.list_offsets("t").values()) >= 2002


def test_closing_leaves_no_thread() -> None:
    with ledgermq.sync.connect("127.0.0.1:1", timeout_s=0.5) as client:
        assert [thread for thread in threading.enumerate() if thread.name == "ledgermq"]
        with pytest.raises(errors.Unavailable):
            client.list_topics()
    assert not [thread for thread in threading.enumerate() if thread.name == "ledgermq"]
    with pytest.raises(errors.Closed):
        client.list_topics()


def test_an_error_of_the_program_ends_the_client() -> None:
    def program() -> None:
        with ledgermq.sync.connect(f"memory://{next(names)}") as client:
            client.create_topic("t", 1)
            client.producer().send("t", b"v")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        program()
    assert not [thread for thread in threading.enumerate() if thread.name == "ledgermq"]


def test_members_of_a_group(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 2)
    at = [ledgermq.TopicPartition("t", partition) for partition in range(2)]
    with client.producer() as producer:
        for number in range(50):
            producer.send("t", b"%d" % number, partition=number % 2)
    with client.consumer("t", group="g") as consumer:
        first = [next(consumer) for _ in range(30)]
        assert consumer.positions() == {
            each: max((m.offset + 1 for m in first if m.partition == each.partition), default=0) for each in at
        }
        consumer.pause()
        assert consumer.fetch(timeout=0.05) == []
        consumer.resume()
        rest = [next(consumer) for _ in range(20)]
        assert len({(m.partition, m.offset) for m in first + rest}) == 50
        consumer.drain()
        assert consumer.committed() == dict.fromkeys(at, 25)
        assert next(consumer, None) is None
        assert consumer.lag() == dict.fromkeys(at, ledgermq.Lag(0, 0.0))
    with client.consumer("t", group="h", commit="acked") as group:
        messages = [next(group) for _ in range(50)]
        acknowledging = threading.Thread(target=lambda: [message.ack() for message in messages if message.offset < 20])
        acknowledging.start()
        acknowledging.join()
    with client.consumer("t", group="h") as group:
        assert sorted((m.partition, m.offset) for m in (next(group) for _ in range(10))) == sorted(
            (p, o) for p in (0, 1) for o in range(20, 25)
        )


def test_at_most_once_skips_nothing_when_partitions_are_paused_or_the_consumer_is_drained(
    client: ledgermq.sync.Client,
) -> None:
    """What waits for this thread is committed already: no other member would receive it."""
    client.create_topic("t", 1)
    with client.producer() as producer:
        for number in range(30):
            producer.send("t", b"%d" % number)
    with client.consumer("t", group="g", commit="before") as consumer:
        seen = [next(consumer).offset for _ in range(3)]
        consumer.pause()
        consumer.resume()
        seen += [next(consumer).offset for _ in range(3)]
        consumer.drain()
        seen += [message.offset for message in consumer]
        assert seen == list(range(30))


@pytest.mark.parametrize("use_with", [True, False])
def test_closing_the_client_stores_what_was_sent_a_moment_before(use_with: bool, tmp_path: Path) -> None:
    target = tmp_path.as_uri()
    with ledgermq.sync.connect(target) as reader:
        reader.create_topic("t", 1)
        if use_with:
            with ledgermq.sync.connect(target) as client:
                deliveries = client.producer().send_many("t", [f"{number}" for number in range(100)])
        else:
            client = ledgermq.sync.connect(target)
            deliveries = client.producer().send_many("t", [f"{number}" for number in range(100)])
            client.close()
            client.close()
        assert [delivery.result().offset for delivery in deliveries] == list(range(100))
        assert reader.list_offsets("t") == {0: 100}
        with pytest.raises(errors.Closed):
            client.producer()


def test_what_a_producer_has_no_time_to_store_is_spilled_and_stored_by_the_next_one(
    client: ledgermq.sync.Client, tmp_path: Path
) -> None:
    client.create_topic("t", 1)
    spill = ledgermq.Spill(tmp_path / "t.spill")
    with client.producer(spill=spill, linger_ms=60_000) as producer:
        producer.send("t", "0")
        producer.flush()
        deliveries = [producer.send("t", str(number)) for number in range(1, 50)]
        with pytest.raises(errors.UsedElsewhere):
            client.producer(spill=spill).open_spill()
        producer.close(timeout_s=0)
        assert producer.spilled is not None
        assert producer.spilled.records == sum(isinstance(each.result(), ledgermq.Spilled) for each in deliveries) > 0
    with client.producer(spill=spill) as producer:
        wait_until(lambda: producer.spilled is not None and producer.spilled.records == 0)
    with client.consumer("t", until_end=True) as consumer:
        assert [message.value for message in consumer] == [b"%d" % number for number in range(50)]


def test_an_aborted_client_fails_what_was_not_handed_over_and_a_closed_producer_takes_nothing() -> None:
    client = ledgermq.sync.connect(f"memory://{next(names)}")
    client.create_topic("t", 1)
    producer = client.producer()
    delivery = producer.send("t", b"v")
    client.abort()
    assert isinstance(delivery.exception(), errors.LedgerMQError)
    with pytest.raises(errors.Closed):
        producer.send("t", b"v")


def test_exception_waits_for_the_record(client: ledgermq.sync.Client) -> None:
    client.create_topic("t", 1, {"max.message.bytes": 100})
    producer = client.producer(linger_ms=50)
    assert producer.send("t", b"v").exception() is None
    assert isinstance(producer.send("t", b"x" * 200).exception(), errors.MessageTooLarge)
    assert isinstance(producer.send("nowhere", b"v").exception(), errors.UnknownTopic)
    patient = client.producer(linger_ms=60_000)
    slow = patient.send("t", b"v")
    with pytest.raises(errors.DeadlineExceeded):
        slow.exception(0.01)
    patient.flush()
    assert slow.exception() is None


@pytest.mark.parametrize("group", [None, "g"])
def test_messages_that_do_not_pass_a_filter_are_left_out(group: str | None) -> None:
    with ledgermq.sync.connect(f"memory://{next(names)}") as client:
        client.create_topic("t", 1)
        with client.producer() as producer:
            for number in range(10):
                producer.send("t", f"{number}", headers={"n": f"{number}"})
        given = {"filter": "n BETWEEN 3 AND 5"}
        with client.consumer("t", **given) if group is None else client.consumer("t", group=group, **given) as consumer:
            got = [next(consumer), *consumer.fetch()]
            assert [message.value for message in got] == [b"3", b"4", b"5"]
            assert consumer.filtered == 7
            assert consumer.position(0) == 10
            if isinstance(consumer, ledgermq.sync.GroupConsumer):
                assert set(consumer.commit(got).values()) == {10}


@pytest.mark.parametrize("group", [None, "g"])
def test_messages_that_expire_while_they_wait_in_the_programs_thread_are_skipped(group: str | None) -> None:
    ahead_us = 0
    sources = Sources(lambda: time.time_ns() // 1000 + ahead_us)
    with ledgermq.sync.connect(f"memory://{next(names)}", sources=sources) as client:
        client.create_topic("t", 1)
        with client.producer() as producer:
            for number, ttl in enumerate([1000, 1000, None, 1000, 9000, 1000]):
                producer.send("t", f"{number}", partition=0, ttl=ttl)
        with client.consumer("t") if group is None else client.consumer("t", group=group) as consumer:
            got = [next(consumer)]
            ahead_us = 2_000_000_000
            got += [next(consumer), *consumer.fetch()]
            assert [message.value for message in got] == [b"0", b"2", b"4"]
            assert consumer.expired == 3
            if isinstance(consumer, ledgermq.sync.GroupConsumer):
                assert set(consumer.commit(got).values()) == {6}


def test_an_exclusive_producer() -> None:
    with ledgermq.sync.connect(f"memory://{next(names)}") as client:
        client.create_topic("t", 2)
        with client.producer(access_mode="exclusive", name="one") as one, client.producer() as shared:
            one.acquire("t", timeout=30)
            assert one.holds("t")
            assert not shared.holds("t")
            assert [each.name for each in client.holders("t")] == ["one", "one"]
            one.send("t", b"of one").result()
            with pytest.raises(errors.PartitionHeld):
                shared.send("t", b"shared").result()
        assert client.holders("t") == []
