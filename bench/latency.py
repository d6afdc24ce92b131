"""P4: acknowledgement latency at 100 records a second, beside one raw PUT of the same store (if
absent, as brokers put) in the same run, and beside a gRPC call to a server that does one such PUT and
nothing else.

On MinIO and HDFS a broker spaces its segments by 100 ms by default, which bounds the bill. Both
settings, with and without the spacing, are measured. Peers that keep only objects, too, are
measured on the same stores, a folder and MinIO, with the same values, which go to eight streams in
turn.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import limits
from bench.load import values
from bench.measures import Curve, Results
from bench.ours import Cluster
from bench.peers import DISKLESS, started
from bench.percentiles import at
from bench.stores import FILE, HDFS, MINIO, stores
from ledgermq.sources import Sources
from ledgermq_ledger.root.open import open_store

RATE = 100.0
RECORDS, VALUE_BYTES = 500, 100
PUT_BYTES, RAW_S, RAW_PUTS_MIN = 1000, 3.0, 5
OURS, UNSPACED, RAW, CALL = "LedgerMQ", "LedgerMQ, no spacing", "raw PUT", "a gRPC call that puts"
PARTS = ((0.5, "p50"), (0.99, "p99"))
CURVE_POINTS = 200


class Latency:
    def __init__(self, results: Results, rounds: int, scale: float, peers: str | None) -> None:
        """`peers`: those whose name has this in it, "" = all; None: none."""
        self._peers = (
            {} if peers is None else {name: of for name, of in DISKLESS.items() if peers.lower() in name.lower()}
        )
        self._results, self._rounds, self._records, self._raw_s = results, rounds, int(RECORDS * scale), RAW_S * scale
        self._stores = (FILE, MINIO, HDFS) if scale >= 1 else (FILE, MINIO)  # HDFS takes half a minute to start

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), *self._stores) as roots:
            for store, new_root in roots.items():
                with ExitStack() as stack:
                    subjects: dict[str, Callable[[], list[float]]] = {
                        RAW: partial(raw_latencies, new_root(), self._raw_s),
                        CALL: partial(limits.putting_calls, new_root(), PUT_BYTES, RATE, self._raw_s, RAW_PUTS_MIN),
                    }
                    for subject in (OURS,) if store == FILE else (OURS, UNSPACED):
                        cluster = Cluster(
                            Path(name), new_root(), 1, *(("--flush-spacing-ms", "0") if subject == UNSPACED else ())
                        )
                        stack.callback(cluster.close)
                        subjects[subject] = partial(self._acknowledgements, cluster, cluster.new_topic(8))
                    if store in (FILE, MINIO):
                        subjects |= self._of_peers(stack, Path(name) / f"peers-{store}", new_root)
                    self._store(store, subjects)

    def _of_peers(
        self, stack: ExitStack, folder: Path, new_root: Callable[[], str]
    ) -> dict[str, Callable[[], list[float]]]:
        """Start peers, each on its own root; of one that cannot start, say why on stderr."""
        folder.mkdir()
        payload = folder / "payload"
        payload.write_bytes(values(1, VALUE_BYTES, random_bytes=False)[0])
        wanted = {subject: partial(running, root=new_root()) for subject, running in self._peers.items()}
        peers, left_out = started(stack, folder, wanted)
        for subject, why in left_out.items():
            print(f"left out: {subject}: {why}", file=sys.stderr)
        return {peer.subject: partial(peer.pace, peer.new_topic(), self._records, payload, RATE) for peer in peers}

    def _store(self, store: str, subjects: Mapping[str, Callable[[], list[float]]]) -> None:
        found: dict[str, list[float]] = {subject: [] for subject in subjects}
        for number in range(self._rounds):
            for subject in list(subjects)[:: 1 if number % 2 == 0 else -1]:
                latencies_ms = subjects[subject]()
                found[subject] += latencies_ms
                for part, which in PARTS:
                    self._results.add(
                        "P4", f"acknowledgement at 100/s, {store}, {which}", subject, "ms", at(latencies_ms, part)
                    )
        for subject, every in found.items():
            self._results.curves.append(Curve("P4", store, subject, distribution(sorted(every))))

    def _acknowledgements(self, cluster: Cluster, topic: str) -> list[float]:
        """In ms, sorted."""
        found: list[float] = cluster.client(
            "produce", topic, rate=RATE, records=self._records, value_bytes=VALUE_BYTES
        )["latencies_ms"]
        return found


def distribution(sorted_values: list[float]) -> list[tuple[float, float]]:
    """(value, part of the values that do not exceed it), at most CURVE_POINTS of them, the smallest
    and the largest among them.
    """
    steps = min(CURVE_POINTS, len(sorted_values))
    ranks = [round(step * (len(sorted_values) - 1) / max(1, steps - 1)) for step in range(steps)]
    return [(sorted_values[rank], (rank + 1) / len(sorted_values)) for rank in ranks]


def raw_latencies(root: str, seconds: float) -> list[float]:
    return asyncio.run(raw_puts(root, seconds))


async def raw_puts(root: str, seconds: float) -> list[float]:
    """Latencies in ms, sorted, of puts at the same pace (one after the other), each of an object
    that is not there.
    """
    sources = Sources()
    async with await open_store(root, sources=sources) as store:

        def put() -> Awaitable[object]:
            return store.put_if_absent(f"bench/{sources.new_id().hex()}", [b"x" * PUT_BYTES])

        return await limits.paced(put, RATE, seconds, RAW_PUTS_MIN)
