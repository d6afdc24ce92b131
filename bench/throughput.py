"""P1 to P3: records a second through one broker on local files with fsync, beside its peers if they
are selected.

All of them get the same values (words of text) and eight partitions or streams.
`bench.peers.DURABILITY` says what a peer's acknowledgement means, and the peer's module says how it
is set up. s2-lite is built before the run, by `cargo install --locked`, without changes. LedgerMQ
uses its default compression (lz4); the others compress where that is faster for them. The clock of
a LedgerMQ client starts when its first record is acknowledged; that of Kafka's tool starts before
its first metadata request. With both running at once, the end of Kafka's tool shows when it began,
some hundredths of a second late. Consumers read from the broker's memory, as far as it holds the
topic. The two subjects *of segments* read another topic, whose broker keeps nothing in memory. They
read it through the broker, or with direct reads, for which the broker returns the ranges and the
consumer reads the files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import limits
from bench.load import FIRST_RECORDS, payloads_in
from bench.measures import Measure, Results, alternate
from bench.ours import Cluster, answer
from bench.peers import kafka, opened
from bench.peers.peer import Peer

ROWS = ("P1", "P2", "P3")
PARTITIONS = 8
OURS, KAFKA = "LedgerMQ", kafka.SUBJECT


class Throughput:
    """`scale`: a quick run takes a fraction of the records."""

    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None) -> None:
        """`peers`: those whose name has this in it, "" = all; None: none."""
        self._results, self._rounds, self._scale, self._peers = results, rounds, scale, peers

    def run(self) -> None:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ledgermq-bench-")))
            (folder / "root").mkdir()
            ours = Cluster(folder, (folder / "root").as_uri())
            stack.callback(ours.close)
            (folder / "cold-root").mkdir()
            cold = Cluster(
                folder, (folder / "cold-root").as_uri(), 1, "--cache-bytes-max=0", "--no-background-compaction"
            )
            stack.callback(cold.close)
            peers: list[Peer] = []
            if self._peers is not None:
                peers, self._results.left_out = opened(stack, folder, self._peers)
            for size, records in ((1000, 300_000), (100, 2_000_000)):
                self._size(ours, cold, peers, folder, size, int(records * self._scale))

    def _size(self, ours: Cluster, cold: Cluster, peers: list[Peer], folder: Path, size: int, records: int) -> None:
        payloads = payloads_in(folder, size)
        topics: list[str] = []

        def produce(via: str) -> Callable[[], float]:
            def once() -> float:
                topics.append(ours.new_topic(PARTITIONS))
                return rate(ours.client("produce", topics[-1], records=records, value_bytes=size, via=via))

            return once

        topics_of_peers: dict[str, str] = {}

        def peer_produce(peer: Peer) -> float:
            topics_of_peers[peer.subject] = peer.new_topic()
            return peer.produce(topics_of_peers[peer.subject], records, payloads)["per_s"]

        row = "P1" if size == 1000 else "P2"
        producing = {f"{OURS} {via}": produce(via) for via in ("send", "send_many", "send_batch")}
        producing |= {peer.subject: partial(peer_produce, peer) for peer in peers}
        alternate(self._results, row, f"produce {size} B", "records/s", producing, self._rounds)

        def both(via: str) -> float:
            """From the first record until a consumer that was there before has read the last one."""
            topic = ours.new_topic(PARTITIONS)
            with ours.start_warm_client("consume", topic, records=records + FIRST_RECORDS, via="messages") as reading:
                try:
                    sent = ours.client("produce", topic, records=records, value_bytes=size, via=via)
                    return float(records / (answer(reading)["ended_at_s"] - sent["begun_at_s"]))
                finally:
                    reading.kill()

        at_once: dict[str, Callable[[], float]] = {
            f"{OURS} {via}": partial(both, via) for via in ("send", "send_batch")
        }
        for peer in peers:
            if isinstance(peer, kafka.Kafka):
                at_once[peer.subject] = lambda peer=peer: peer.produce_and_consume(peer.new_topic(), records, payloads)  # type: ignore[misc]
        alternate(self._results, row, f"produce and consume {size} B", "records/s", at_once, self._rounds)
        full = topics[-1]
        consuming = {
            f"{OURS} {via}": lambda via=via: rate(ours.client("consume", full, records=records, via=via))  # type: ignore[misc]
            for via in ("messages", "arrow")
        }
        segments = cold.new_topic(PARTITIONS)
        cold.client("produce", segments, records=records, value_bytes=size, via="send_batch")
        for name, place in (("through the broker", ""), ("direct reads", cold.root)):
            consuming[f"{OURS} arrow of segments, {name}"] = lambda place=place: rate(  # type: ignore[misc]
                cold.client("consume", segments, records=records, via="arrow", direct=place)
            )
        for peer in peers:
            consuming[peer.subject] = lambda peer=peer: peer.consume(topics_of_peers[peer.subject], records)["per_s"]
        alternate(
            self._results, "P3" if size == 100 else "P1", f"consume {size} B", "records/s", consuming, self._rounds
        )


def rates(results: Results) -> dict[str, list[Measure]]:
    """Records a second by what was measured, a measure for each subject that is a broker."""
    found: dict[str, list[Measure]] = {}
    for measure in results.measures:
        if measure.row in ROWS and measure.unit == "records/s" and measure.subject != limits.SUBJECT:
            found.setdefault(measure.what, []).append(measure)
    return found


def rate(found: dict[str, float]) -> float:
    return found["records"] / found["seconds"]
