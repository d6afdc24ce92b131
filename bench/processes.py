"""P11: one and two broker processes on one machine: their joint rate, and the processor time of a
megabyte from producer to consumer.

Two clients produce, then one client reads everything. Clients and brokers share two cores, which one
broker and two clients fill already. So the rate is measured a second time with a bound of CPU for each
broker process, which leaves cores for a second one and for the clients.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

from bench.cpu_quota import bounded, can_bound
from bench.measures import Curve, Results
from bench.ours import Cluster, answer

COUNTS = (1, 2)
CLIENTS = 2
RECORDS, VALUE_BYTES, PARTITIONS = 300_000, 1000, 16
CORES = 0.3
PRODUCE = "produce 1000 B, two clients"


def subject(processes: int, cores: float | None = None) -> str:
    plural = "es" if processes > 1 else ""
    return f"{processes} broker process{plural}" + ("" if cores is None else f", {cores:g} of a core each")


class Processes:
    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds, self._records = results, rounds, int(RECORDS * scale)
        self._counts = (*COUNTS, 4) if (os.cpu_count() or 1) >= 4 else COUNTS

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name:
            for number in range(self._rounds):
                for processes in self._counts[:: 1 if number % 2 == 0 else -1]:
                    for cores in (None, CORES) if can_bound() else (None,):
                        folder = Path(name, f"{number}-{processes}-{cores}")
                        (folder / "root").mkdir(parents=True)
                        with (
                            ExitStack() as bounds,
                            closing(Cluster(folder, (folder / "root").as_uri(), processes)) as cluster,
                        ):
                            if cores is not None:
                                brokers = [broker.pid for broker in cluster.brokers.running]
                                bounds.enter_context(bounded(brokers, cores))
                            self._measure(cluster, processes, cores)
        found = [(n, self._results.of("P11", PRODUCE, subject(n))) for n in self._counts]
        self._results.curves.append(
            Curve("P11", "produce 1000 B", "LedgerMQ", [(float(n), m.median) for n, m in found if m is not None])
        )

    def _measure(self, cluster: Cluster, processes: int, cores: float | None) -> None:
        topic, name = cluster.new_topic(PARTITIONS), subject(processes, cores)
        cpu_s = cluster.cpu_s()
        each = self._records // CLIENTS
        clients = [
            cluster.start_client("produce", topic, records=each, value_bytes=VALUE_BYTES, via="send_batch")
            for _ in range(CLIENTS)
        ]
        made = [answer(client) for client in clients]
        produced_s = cluster.cpu_s() - cpu_s
        rate = sum(done["records"] / done["seconds"] for done in made)
        self._results.add("P11", PRODUCE, name, "records/s", rate)
        if cores is not None:
            return
        read = cluster.client("consume", topic, records=sum(done["records"] for done in made), via="arrow")
        megabytes = read["records"] * VALUE_BYTES / 1e6
        self._results.add("P11", "brokers' CPU, producing", name, "ms/MB", 1000 * produced_s / megabytes)
        self._results.add(
            "P11", "brokers' CPU, end to end", name, "ms/MB", 1000 * (cluster.cpu_s() - cpu_s) / megabytes
        )
