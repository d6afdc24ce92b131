"""Judge a finished run: compare all answers with the truth. The simulation's checker reads the
history, the root and the logs.

The truth is what pyarrow reads from Parquet after the last compaction. Below the first file that
retention left, the records that readers had seen replace it: there the checker compares
observations with each other, and retention with the clock. The same holds for deleted topics.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from ledgermq.cli.output.exit_codes import ExitCode
from tests.chaos.children import LEDGERMQ, Children
from tests.chaos.group_judge import judge_group
from tests.chaos.groups import JUDGED, Told
from tests.chaos.members import Members
from tests.chaos.plain_reader import PlainReader
from tests.chaos.workload import PARTITIONS, RETENTION_MS, TOPICS, Workload
from tests.judges.violation import Violation
from tests.simulation.checker import check
from tests.simulation.history import FinalLog, Partition, Poll, Produce, Produced

COMMAND_S_MAX = 300.0
SPARK_TELLS = "[INTERNAL_ERROR_STORAGE] Block broadcast_"
"""How a JVM ends whose Python driver was killed in the middle of a job."""
BUGS = (
    "AssertionError",
    "Traceback (most recent call last)",
    "never awaited",
    "INTERNAL",
    "exception was never retrieved",
)
GRPC_TELLS = re.compile(
    r"Exception not handled by _handle_exceptions in servicer method.*\n(Traceback.*\n( "
    r" .*\n)+asyncio\S+CancelledError\n)+"
)
"""How gRPC itself tells of a call that did not end in the time that a server which stops gives it."""


def judge_history(
    work: Workload,
    parquet: dict[Partition, dict[int, str]],
    log_starts: dict[Partition, int],
    drained: list[tuple[str, Partition]],
) -> list[Violation]:
    """`log_starts`: at the end."""
    seen = _seen(work)
    logs, violations = {}, []
    for topic in TOPICS:
        for number in range(PARTITIONS):
            partition = (topic, number)
            logs[partition], found = _final_log(
                partition, parquet.get(partition, {}), seen.get(partition, {}), log_starts[partition]
            )
            violations += found
            if "retention.ms" in TOPICS[topic]:
                violations += _judge_retention(work, partition, logs[partition])
    for partition, end in _ends_of_the_deleted(work).items():
        logs[partition] = FinalLog(seen.get(partition, {}), log_start=end, judged_from=end)
    return violations + check(work.history, logs, drained)


def _seen(work: Workload) -> dict[Partition, dict[int, str]]:
    seen: dict[Partition, dict[int, str]] = {}
    for event in work.history:
        if isinstance(event, Poll):
            seen.setdefault(event.partition, {}).update(event.records)
    return seen


def _final_log(
    partition: Partition, stored: dict[int, str], seen: dict[int, str], log_start: int
) -> tuple[FinalLog, list[Violation]]:
    if "retention.ms" not in TOPICS[partition[0]]:
        found = (
            [] if log_start == 0 else [Violation("log start", f"{partition}: {log_start}, though everything is kept")]
        )
        return FinalLog(stored), found
    first = min(stored, default=log_start)
    gone = {offset: value for offset, value in seen.items() if offset < first}
    found = (
        []
        if first <= log_start
        else [Violation("removed too early", f"{partition}: first is {first}, the log starts at {log_start}")]
    )
    return FinalLog(gone | stored, log_start, judged_from=first), found


def _ends_of_the_deleted(work: Workload) -> dict[Partition, int]:
    """No client has a copy of what was deleted: what was seen below these offsets is held against
    what was sent and acknowledged.
    """
    ends: dict[Partition, int] = {}
    sends: dict[int, Partition] = {}
    for event in work.history:
        match event:
            case Produce():
                sends[event.op] = event.partition
            case Produced():
                ends[sends[event.op]] = max(ends.get(sends[event.op], 0), event.base_offset + 1)
            case Poll():
                ends[event.partition] = max(ends.get(event.partition, 0), event.records[-1][0] + 1)
    return {partition: end for partition, end in ends.items() if partition[0] not in TOPICS}


def _judge_retention(work: Workload, partition: Partition, log: FinalLog) -> list[Violation]:
    """Records below a log start that a client was given were old enough by then."""
    told: dict[int, int] = {}
    for where, log_start, at_ms in work.log_starts:
        if where == partition:
            told[log_start] = min(at_ms, told.get(log_start, at_ms))
    violations = []
    for offset, value in log.records.items():
        ends = [at_ms for log_start, at_ms in told.items() if log_start > offset]
        if ends and value in work.sent_ms and min(ends) - work.sent_ms[value] < RETENTION_MS:
            age_ms = min(ends) - work.sent_ms[value]
            violations.append(
                Violation("removed too early", f"{partition}: {value!r} at {offset} was gone at an age of {age_ms} ms")
            )
    return violations


async def compact_all(children: Children, url: str) -> list[Violation]:
    child = children.spawn("last-compaction", [*LEDGERMQ, "compact", url, "--engine", "local"])
    try:
        code = await child.ended(COMMAND_S_MAX)
    except TimeoutError:
        return [Violation("stuck", f"the last compaction took more than {COMMAND_S_MAX:.0f} s")]
    return [] if code == 0 else [Violation("compaction fails", f"exit code {code}: {child.text()[-500:]}")]


async def fsck(children: Children, url: str) -> tuple[list[Violation], str]:
    """Violations and the verdict.

    Left-overs of processes that were killed are no damage; they are counted.
    """
    child = children.spawn("fsck", [*LEDGERMQ, "fsck", url, "--output", "json"])
    try:
        code = await child.ended(COMMAND_S_MAX)
    except TimeoutError:
        return [Violation("stuck", f"fsck took more than {COMMAND_S_MAX:.0f} s")], "no answer"
    try:
        found = json.loads(child.text())
    except ValueError:
        return [Violation("fsck", f"exit code {code}, no JSON: {child.text()[-500:]}")], "no answer"
    violations = [
        Violation("fsck", f"{problem['code']} {problem['object_key']}: {problem['text']}")
        for problem in found["problems"]
        if problem["severity"] == "damage"
    ]
    if code not in (ExitCode.OK, ExitCode.UNTIDY) and not violations:
        violations.append(Violation("fsck", f"exit code {code}"))
    facts = ", ".join(
        f"{found[name]} {name.replace('_', ' ')}" for name in ("objects", "segments", "records", "parquet_files")
    )
    untidy = sum(problem["severity"] == "untidy" for problem in found["problems"])
    return violations, f"{found['verdict']}: {facts}, {untidy} left-overs"


SERVERS = ("minio", "azurite", "fake-gcs-server", "gcs-xml")
"""Programs whose logs are not judged."""


def judge_logs(folder: Path) -> list[Violation]:
    """Nothing that a broker printed is a bug's trace."""
    violations = []
    for log in sorted(folder.glob("*.log")):
        if log.name.startswith(SERVERS):
            continue
        lines = GRPC_TELLS.sub("", log.read_text(errors="replace")).splitlines()
        bad = [
            (number, line)
            for number, line in enumerate(lines)
            if any(bug in line for bug in BUGS) and SPARK_TELLS not in line
        ]
        if bad:
            number, line = bad[0]
            violations.append(Violation("bug", f"{log.name}, line {number + 1} ({len(bad)} such lines): {line[:200]}"))
    return violations


def judge_groups(members: Members, told: list[Told], parquet: dict[Partition, dict[int, str]]) -> list[Violation]:
    logs = {(JUDGED, number): parquet.get((JUDGED, number), {}) for number in range(PARTITIONS)}
    found = [
        Violation("bug", f"{member} was told {error}")
        for member, error in members.told()
        if error.startswith(members.cast.never_told)
    ]
    return found + [
        violation for group in members.cast.groups for violation in judge_group(group, members.diary(group), told, logs)
    ]


async def read_parquet(plain: PlainReader) -> tuple[dict[Partition, dict[int, str]], list[Violation]]:
    return await asyncio.to_thread(plain.records)
