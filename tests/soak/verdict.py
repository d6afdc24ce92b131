"""After a soak: do all witnesses tell of the same records? Producers, the stream, every plain read,
and the log at its end.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ledgermq.sources import Sources
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.object_store.file.reserve import NAME as RESERVE
from ledgermq_ledger.parquet.pages import PageReader
from ledgermq_ledger.root.open import open_store
from tests.chaos.transaction_judge import Attempt, attempts
from tests.judges.nothing_lost import missing
from tests.judges.plain_parquet import is_whole
from tests.judges.violation import Violation
from tests.soak.numbered import Partition, Run, counters_doubled, differences, joined
from tests.soak.plain_reads import PlainReads, by_pyarrow
from tests.soak.transactor import MOVED
from tests.soak.whole import counters_in, judge_moved, judge_whole, runs_sent

BOOKKEEPING_BYTES_MAX = 32_000_000


@dataclass
class Witnesses:
    acknowledged: dict[Partition, list[Run]] = field(default_factory=dict)
    unknown: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    stream: dict[Partition, list[Run]] = field(default_factory=dict)
    stream_batches: int = 0
    stream_age_ms: list[int] = field(default_factory=list)
    transactions: list[Attempt] = field(default_factory=list)
    plain: list[dict[str, Any]] = field(default_factory=list)
    producers: list[dict[str, Any]] = field(default_factory=list)
    looks: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, topics: Sequence[str]) -> Witnesses:
        found = cls()
        for topic in topics:
            told = json.loads((folder / f"producer-{topic}.json").read_text())
            found.producers.append(told)
            for partition, runs in told["acknowledged"].items():
                found.acknowledged[topic, int(partition)] = [Run(*run) for run in runs]
            for partition, counters in told["unknown"].items():
                found.unknown[topic, int(partition)] = [(first, last) for first, last in counters]
        found.transactions = [attempt for diary in folder.glob("writer*.diary") for attempt in attempts(diary)]
        batches = batches_in(folder / "stream.jsonl")
        found.stream_batches = len(batches)
        for line in batches.values():
            if line["age_ms"] is not None:
                found.stream_age_ms.append(line["age_ms"])
            for topic, partition, run in line["runs"]:
                found.stream.setdefault((topic, partition), []).append(Run(*run))
        for name in ("plain.jsonl", "stream.jsonl.plain"):
            written = folder / name
            for text in written.read_text().splitlines() if written.exists() else []:
                line = json.loads(text)
                if "reader" in line:
                    found.plain.append(line)
                else:
                    found.looks = line["looks"]
        return found

    @staticmethod
    def stream_end(file: Path, partition: Partition) -> int:
        """The first offset that the stream has not written down."""
        ends = [run[1] + 1 for line in batches_in(file).values() for t, p, run in line["runs"] if (t, p) == partition]
        return max(ends, default=0)


def batches_in(file: Path) -> dict[int, dict[str, Any]]:
    """By number; of one that ran again the last counts. A line that a kill has cut off is none."""
    found = {}
    for text in file.read_text().splitlines() if file.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        found[line["batch"]] = line
    return found


async def judge(
    told: Witnesses, url: str, parquet: Path, ends: dict[Partition, int], sizes: dict[str, int], facts: dict[str, Any]
) -> list[Violation]:
    """`facts` take what there is to tell."""
    violations = [Violation("plain read", problem) for line in told.plain for problem in line["problems"]]
    stream: dict[Partition, list[Run]] = {}
    for partition, end in ends.items():
        try:
            stream[partition] = joined(told.stream.get(partition, []))
        except ValueError as error:
            violations.append(Violation("stream doubled", f"{partition}: {error}"))
            continue
        violations += _whole(partition, stream[partition], end)
        for problem in differences(joined(told.acknowledged.get(partition, [])), stream[partition]):
            violations.append(Violation("stream differs from what was acknowledged", f"{partition}: {problem}"))
        for problem in counters_doubled(stream[partition]):
            violations.append(Violation("record doubled", f"{partition}: {problem}"))
        if partition[0] != MOVED:
            violations += _only_what_was_sent(partition, told, stream[partition])
    violations += judge_whole(told.transactions, stream)
    violations += judge_moved(stream)
    last, problems = PlainReads(parquet).look("the last read", by_pyarrow)
    violations += [Violation("plain read", problem) for problem in problems]
    for line in [
        *told.plain,
        {"reader": "the last read", "runs": [[*partition, runs] for partition, runs in last.items()]},
    ]:
        for topic, number, runs in line["runs"]:
            for problem in differences([Run(*run) for run in runs], stream.get((topic, number), [])):
                violations.append(
                    Violation("plain read differs from the stream", f"{line['reader']}: {topic}-{number}: {problem}")
                )
    for partition, end in ends.items():
        runs = last.get(partition, [])
        spans = [(run.first, run.last) for run in runs]
        if not is_whole(spans, end, from_beginning=partition[0] != "brief"):
            violations.append(
                Violation("Parquet is not whole", f"{partition}: {runs[:1]} … {runs[-1:]}, the log ends at {end}")
            )
    violations += await _live_bytes(url, sizes, facts)
    _tell(told, ends, facts)
    return violations


def _whole(partition: Partition, runs: list[Run], end: int) -> list[Violation]:
    spans = [(run.first, run.last) for run in runs]
    beyond = [(end, spans[-1][1])] if spans and spans[-1][1] >= end else []
    return [
        Violation("stream has a gap", f"{partition}: offsets {first} to {last}")
        for first, last in missing(spans, 0, end) + beyond
    ]


def _only_what_was_sent(partition: Partition, told: Witnesses, runs: list[Run]) -> list[Violation]:
    """Each record of the log was acknowledged, or its producer does not know, or it was sent in a
    transaction.
    """
    sent = [(run.first + run.shift, run.last + run.shift) for run in told.acknowledged.get(partition, [])]
    sent += told.unknown.get(partition, [])
    sent += [(first, last) for one in told.transactions for at, first, last in runs_sent(one) if at == partition]
    whole = joined(Run(first, last, 0) for first, last in sent)
    found = differences(counters_in(runs), whole)
    return [Violation("never sent", f"{partition}: counters: {problem}") for problem in found]


async def _live_bytes(url: str, sizes: dict[str, int], facts: dict[str, Any]) -> list[Violation]:
    """The bucket holds the files that the lists name, claims and releases, and some bookkeeping."""
    async with await open_store(url, sources=Sources()) as store:
        live = 0
        for bundle in range((await read_cluster(store)).bundles):
            pages = PageReader(store, bundle)
            for part in (await newest_checkpoint(store, bundle)).partitions:
                live += sum(file.size for file in await pages.files_from(part, part.parquet_start))
    facts["live_parquet_bytes"] = live
    violations = []
    files = sizes.get("parquet", 0) + sizes.get("hidden", 0)
    if files != live:
        violations.append(Violation("bucket size", f"parquet/ and hidden/ hold {files} bytes, {live} are live"))
    rest = sum(size for name, size in sizes.items() if name not in ("parquet", "hidden", RESERVE))
    facts["bookkeeping_bytes"] = rest
    if rest > BOOKKEEPING_BYTES_MAX:
        violations.append(Violation("bucket size", f"{rest} bytes beside Parquet: {sizes}"))
    return violations


def _tell(told: Witnesses, ends: dict[Partition, int], facts: dict[str, Any]) -> None:
    facts["records"] = sum(ends.values())
    facts["producers"] = [
        {
            name: producer[name]
            for name in ("topic", "records", "bytes", "paused_s", "latency_p50_ms", "latency_p99_ms", "told")
        }
        for producer in told.producers
    ]
    ends_told = Counter(attempt.sent.told for attempt in told.transactions)
    facts["transactions"] = {
        "acknowledged": ends_told[True],
        "aborted or never decided": ends_told[False],
        "unknown": ends_told[None],
    }
    facts["stream_batches"] = told.stream_batches
    ages = sorted(told.stream_age_ms)
    if ages:
        facts["stream_age_ms"] = {"median": median(ages), "p99": ages[len(ages) * 99 // 100], "max": ages[-1]}
    reads: defaultdict[str, int] = defaultdict(int)
    for line in told.plain:
        reads[line["reader"]] += 1
    facts["plain_reads"] = dict(reads)
    facts["plain_reads_records"] = sum(
        run[1] + 1 - run[0] for line in told.plain for *_, runs in line["runs"] for run in runs
    )
    facts["looks"] = told.looks
