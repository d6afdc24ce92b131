"""Each peer of the benchmark starts, takes records and gives them back: a rate of one that does not
would be worth nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from bench.load import values
from bench.peers import DURABILITY, confluent, kafka, nats, rabbitmq, redis, rocketmq, s2
from bench.peers.peer import STREAMS, Peer
from bench.stores import FILE, MINIO, stores

pytestmark = [pytest.mark.real, pytest.mark.nightly, pytest.mark.timeout(900)]  # the first run builds and fetches them

RECORDS = 20_000
VALUE_BYTES = 100


@pytest.fixture
def payloads(tmp_path: Path) -> Path:
    path = tmp_path / "payloads"
    path.write_bytes(b"\n".join(values(1000, VALUE_BYTES, random_bytes=False)))
    return path


def gives_back_what_it_took(peer: Peer, payloads: Path) -> None:
    assert peer.subject in DURABILITY
    assert peer.durability == DURABILITY[peer.subject]
    for _ in range(2):
        topic = peer.new_topic()
        assert peer.produce(topic, RECORDS, payloads)["per_s"] > 0
        read = peer.consume(topic, RECORDS)
        assert read["per_s"] > 0
        assert read["records"] == RECORDS
        assert read.get("bytes_read", RECORDS * VALUE_BYTES) == RECORDS * VALUE_BYTES


@pytest.mark.parametrize(
    "running",
    [redis.running, nats.running, partial(nats.running, sync_always=False), rabbitmq.running, rocketmq.running],
    ids=["redis", "nats-sync", "nats", "rabbitmq", "rocketmq"],
)
def test_a_peer_gives_back_what_it_took(
    running: Callable[[Path], AbstractContextManager[Peer]], tmp_path: Path, payloads: Path
) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    with running(folder) as peer:
        gives_back_what_it_took(peer, payloads)


WITH_S2 = pytest.mark.skipif(s2.BINARY.found() is None, reason="s2-lite takes too long to build in a test")


@WITH_S2
@pytest.mark.parametrize("store", [FILE, MINIO])
def test_s2_gives_back_what_it_took_and_keeps_a_pace(store: str, tmp_path: Path, payloads: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    with stores(tmp_path, store) as roots, s2.running(folder, roots[store]()) as peer:
        gives_back_what_it_took(peer, payloads)
        topic = peer.new_topic()
        latencies_ms = peer.pace(topic, 100, payloads, rate=100.0)
        assert len(latencies_ms) == 100
        assert latencies_ms[0] > 0
        assert latencies_ms == sorted(latencies_ms)
        warm_up = STREAMS
        assert peer.consume(topic, 100 + warm_up)["bytes_read"] == (100 + warm_up) * VALUE_BYTES


def test_rocketmq_delivers_timed_messages_when_they_are_due(tmp_path: Path, payloads: Path) -> None:
    folder = tmp_path / "peer"
    folder.mkdir()
    with rocketmq.running(folder) as peer:
        for given in ({"at_s": time.time() + 20}, {"rate": 100.0}):
            topic = peer.new_topic()
            with peer.receiving(topic, 500) as received:
                assert peer.send_timed(topic, 500, payloads, **given)["per_s"] > 0
                found = received()
            assert found["records"] == 500
            assert found["p50_ms"] <= found["p99_ms"] <= found["max_ms"] < 60_000
            assert found["ended_at_s"] >= given.get("at_s", 0.0)


def test_kafka_gives_back_what_it_took_from_both_clients(tmp_path: Path, payloads: Path) -> None:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka.running(folder) as broker:
        gives_back_what_it_took(broker, payloads)
        with confluent.running(broker) as other_client:
            gives_back_what_it_took(other_client, payloads)


def test_kafka_commits_every_transaction_and_holds_back_readers_while_one_is_open(
    tmp_path: Path, payloads: Path
) -> None:
    folder = tmp_path / "kafka"
    folder.mkdir()
    with kafka.running(folder) as broker:
        broker.create_topic("committed", 4)
        found = broker.commit("committed", 4, 20, 10, payloads)
        assert found["transactions"] == len(found["commit_ms"]) == len(found["whole_ms"]) == 20
        assert 0 < sum(found["commit_ms"]) < sum(found["whole_ms"]) < found["seconds"] * 1000
        records = (kafka.WARM_UP + 20) * 10
        assert broker.consume("committed", records, committed=True)["records"] == records
        broker.create_topic("beside", 1)
        held = broker.beside("beside", 3, 20, 100, is_open=True)["latencies_ms"]
        assert len(held) == 60
        assert max(held) > 2000  # of the first one: it waits until the transaction of three seconds ends
