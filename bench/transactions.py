"""T1 to T4: transactions of one client, one after the other: ten records of 1000 B over four
partitions; records that another producer sends beside a transaction that stays open for a minute;
bulk inside and outside of transactions; and requests to the store with 200 producers.

T1 counts transactions a second, from the first begin until the last commit is acknowledged, and
times each commit from the call until its acknowledgement; the records of the transaction are sent
just before, so the commit waits for them, too. Clients are warm: they have committed other
transactions before. T2 times records of a producer without transactions, at a fixed rate, from when
each was due until a consumer has it. The consumer reads a partition to which an open transaction
has written; *alone* there is no transaction.

LedgerMQ stores a commit with one put, once the records are stored, so T1 shows single puts of the
same store as well, and commits as multiples of their median: of a folder, where a put takes little
more than the work around it, and of a store at the distance of S3. *8 ids* are eight transactional
ids in one client. T3 sends Arrow batches of 1000 records, ten of them in a transaction. T4 counts
the PUTs of a broker, with the store of P5, while one client runs transactions of 200 ids side by
side; once with the four bundles of data that a cluster has by default, and once with one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from bench import latency
from bench.latency import raw_latencies
from bench.load import payloads_in
from bench.measures import Results
from bench.ours import Cluster, answer, wait_until_warm
from bench.peers import kafka
from bench.percentiles import at
from bench.stores import DISTANT, stores
from tests.e2e.admin_port import ADMIN

PARTITIONS, RECORDS, VALUE_BYTES, TRANSACTIONS = 4, 10, 1000, 500
WHAT = f"transactions of {RECORDS} × {VALUE_BYTES} B over {PARTITIONS} partitions"
OPEN_S, RATE, BESIDE_BYTES = 60, 100, 100
SEEN = f"since a record was due, {RATE}/s"
PARTS = ((0.5, "p50"), (0.99, "p99"))
OURS, OURS_IDS, IDS = "LedgerMQ", "LedgerMQ, 8 ids", 8
RAW = latency.RAW
RAW_S = 3.0
COMMIT = "commit"
AFAR, AFAR_TRANSACTIONS, AFAR_RAW_S = "LedgerMQ, as far as S3", 100, 8.0
BULK, INSIDE, OUTSIDE, BULK_RECORDS = "Arrow batches of 1000 × 1000 B", "in transactions", "outside", 300_000
CROWD, CROWD_EACH, PUTS = 200, 10, "PUTs a transaction"
CROWD_SUBJECT = f"{CROWD} producers"
QUIET = ("--no-background-compaction",)
CROWDS: dict[str, Sequence[str]] = {
    CROWD_SUBJECT: (),
    f"{CROWD_SUBJECT}, one bundle of data": ("--bundles", "2"),
}
"""Subjects, and the options of their brokers: a cluster has four bundles of data by default."""


def seen(part: str, *, is_open: bool) -> str:
    return f"{SEEN}, {'beside an open transaction' if is_open else 'alone'}, {part}"


def in_puts(part: str) -> str:
    return f"{COMMIT}, {part}, in raw PUTs (p50)"


@dataclass(frozen=True, slots=True)
class Committed:
    """What one run of transactions took. `commits_ms`: each commit, from the call until it is
    acknowledged.
    """

    per_s: float
    commits_ms: list[float]


class Transactions:
    """`scale`: a quick run takes a fraction of the transactions, and of the minute."""

    def __init__(self, results: Results, rounds: int, scale: float) -> None:
        self._results, self._rounds = results, rounds
        self._transactions, self._open_s = int(TRANSACTIONS * scale), int(OPEN_S * scale)
        self._bulk_records = int(BULK_RECORDS * scale)
        self._with_peers = scale >= 1

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, ExitStack() as stack:
            folder, topics = Path(name), count()
            (folder / "root").mkdir()
            ours = Cluster(folder, (folder / "root").as_uri())
            stack.callback(ours.close)
            committing = {
                OURS: partial(self._our_commits, ours, 1, self._transactions),
                OURS_IDS: partial(self._our_commits, ours, IDS, self._transactions),
            }
            beside = {OURS: partial(self._our_beside, ours)}
            if self._with_peers:
                payloads = payloads_in(folder, VALUE_BYTES)
                broker = stack.enter_context(kafka.running(folder))
                committing[kafka.SUBJECT] = partial(self._kafka_commits, broker, topics, payloads)
                beside[kafka.SUBJECT] = partial(self._kafka_beside, broker, topics)
            self._committing(committing, (folder / "raw").as_uri())
            self._beside(beside)
            self._bulk(ours)
        self._crowd()

    def _committing(self, subjects: Mapping[str, Callable[[], Committed]], raw_root: str) -> None:
        for number in range(self._rounds):
            raw_ms = raw_latencies(raw_root, RAW_S)
            for part, which in PARTS:
                self._results.add("T1", f"{COMMIT}, {which}", RAW, "ms", at(raw_ms, part))
            for subject in list(subjects)[:: 1 if number % 2 == 0 else -1]:
                found = subjects[subject]()
                self._results.add("T1", WHAT, subject, "transactions/s", found.per_s)
                self._add_commits(subject, found, at(raw_ms, 0.5))

    def _add_commits(self, subject: str, found: Committed, raw_ms: float) -> None:
        for part, which in PARTS:
            commit_ms = at(sorted(found.commits_ms), part)
            self._results.add("T1", f"{COMMIT}, {which}", subject, "ms", commit_ms)
            if subject in (OURS, AFAR):
                self._results.add("T1", in_puts(which), subject, "", commit_ms / raw_ms)

    def _beside(self, subjects: Mapping[str, Callable[[bool], list[float]]]) -> None:
        """Measure once, because a minute for each subject is enough to see a minute's delay."""
        for subject, latencies in subjects.items():
            for is_open in (False, True):
                found = sorted(latencies(is_open))
                for part, which in PARTS:
                    self._results.add("T2", seen(which, is_open=is_open), subject, "ms", at(found, part))

    def _bulk(self, ours: Cluster) -> None:
        for number in range(self._rounds):
            for subject in (INSIDE, OUTSIDE)[:: 1 if number % 2 == 0 else -1]:
                found = ours.client(
                    "bulk",
                    ours.new_topic(PARTITIONS),
                    records=self._bulk_records,
                    value_bytes=VALUE_BYTES,
                    outside=subject == OUTSIDE,
                )
                self._results.add("T3", BULK, subject, "records/s", found["records"] / found["seconds"])

    def _crowd(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ledgermq-bench-") as name, stores(Path(name), DISTANT) as roots:
            if DISTANT not in roots:
                return
            for _ in range(max(1, self._rounds // 2)):
                raw_ms = at(raw_latencies(roots[DISTANT](), AFAR_RAW_S), 0.5)
                for subject, options in CROWDS.items():
                    with closing(Cluster(Path(name), roots[DISTANT](), 1, *ADMIN, *QUIET, *options)) as cluster:
                        self._crowd_of(subject, cluster)
                        if not options:
                            self._add_commits(AFAR, self._our_commits(cluster, 1, AFAR_TRANSACTIONS), raw_ms)

    def _crowd_of(self, subject: str, cluster: Cluster) -> None:
        client = cluster.start_client(
            "commit", cluster.new_topic(PARTITIONS), transactions=CROWD * CROWD_EACH, ids=CROWD, warm_up=2
        )
        wait_until_warm(client)
        before = cluster.bill()
        done = answer(client)
        puts = cluster.bill().since(before).puts
        self._results.add("T4", PUTS, subject, "", puts / done["transactions"])
        self._results.add("T4", "transactions", subject, "transactions/s", done["transactions"] / done["seconds"])

    def _our_commits(self, ours: Cluster, ids: int, transactions: int) -> Committed:
        found = ours.client("commit", ours.new_topic(PARTITIONS), transactions=transactions, each=RECORDS, ids=ids)
        return Committed(found["transactions"] / found["seconds"], found["commit_ms"])

    def _our_beside(self, ours: Cluster, is_open: bool) -> list[float]:
        found: list[float] = ours.client(
            "beside", ours.new_topic(1), seconds=self._open_s, rate=RATE, value_bytes=BESIDE_BYTES, open=is_open
        )["latencies_ms"]
        return found

    def _kafka_commits(self, broker: kafka.Kafka, topics: count[int], payloads: Path) -> Committed:
        topic = f"transactions-{next(topics)}"
        broker.create_topic(topic, PARTITIONS)
        found = broker.commit(topic, PARTITIONS, self._transactions, RECORDS, payloads)
        return Committed(found["transactions"] / found["seconds"], found["commit_ms"])

    def _kafka_beside(self, broker: kafka.Kafka, topics: count[int], is_open: bool) -> list[float]:
        topic = f"transactions-{next(topics)}"
        broker.create_topic(topic, 1)
        found: list[float] = broker.beside(topic, self._open_s, RATE, BESIDE_BYTES, is_open=is_open)["latencies_ms"]
        return found
