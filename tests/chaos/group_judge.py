"""Judge groups by the diaries of their members and by the committed offsets that the cluster
reported. All times are of one clock.

never handled                  no member of a group was handed a record
skipped                        a group had committed past a record before any member was done with it
committed offset went back     reported lower than an offset that was acknowledged, or reported, before the request
commit beyond the end          past every record
inconsistent offsets           a member was handed another record than the one that is stored there
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from tests.chaos.groups import JUDGED, Told
from tests.chaos.members import Entry
from tests.judges.violation import Violation
from tests.simulation.history import Partition

NEVER_NS = 2**63
Commit = tuple[int, int]
"""(when it was known to be so, the next offset to read)"""


def judge_group(
    group: str, diary: Iterable[Entry], told: Iterable[Told], logs: Mapping[Partition, Mapping[int, str]]
) -> list[Violation]:
    """`logs`: offset → name of all that is in the judged partitions; dense, from 0."""
    diary, all_told = list(diary), [each for each in told if each.group == group]
    violations = []
    for partition, log in logs.items():
        assert partition[0] == JUDGED
        mine = [entry for entry in diary if entry.partition == partition]
        handled = [entry for entry in mine if entry.what == "handled"]
        told = [each for each in all_told if partition not in each.staged]
        commits = [(entry.at_ns, entry.offset) for entry in mine if entry.what == "committed"]
        commits = sorted(commits + [(each.told_ns, each.offsets.get(partition, 0)) for each in told])
        found = [
            *_judge_handled(handled, log),
            *_judge_commits(commits, _all_handled_ns(handled, len(log))),
            *_judge_told(told, partition, commits),
        ]
        violations += [Violation(kind, f"group {group}, {partition}: {text}") for kind, text in found]
    return violations


Found = list[tuple[str, str]]


def _judge_handled(handled: list[Entry], log: Mapping[int, str]) -> Found:
    found = [
        ("inconsistent offsets", f"{entry.offset} was {entry.name!r}, {log.get(entry.offset)!r} is stored")
        for entry in handled
        if log.get(entry.offset) != entry.name
    ]
    missing = log.keys() - {entry.offset for entry in handled}
    if missing:
        found.append(("never handled", f"{len(missing)} records, the first is {min(missing)}, {log[min(missing)]!r}"))
    return found


def _all_handled_ns(handled: list[Entry], end: int) -> list[int]:
    """By offset: since when it and all below it had been handled."""
    first_ns = [NEVER_NS] * end
    for entry in handled:
        if entry.offset < end:
            first_ns[entry.offset] = min(first_ns[entry.offset], entry.at_ns)
    return list(accumulate(first_ns, max))


def _judge_commits(commits: list[Commit], all_handled_ns: list[int]) -> Found:
    """One of each kind is enough."""
    found: dict[str, str] = {}
    for at_ns, offset in commits:
        if offset > len(all_handled_ns):
            found.setdefault("commit beyond the end", f"{offset} of {len(all_handled_ns)}")
        elif offset and all_handled_ns[offset - 1] > at_ns:
            first = bisect_right(all_handled_ns, at_ns)
            found.setdefault("skipped", f"{offset} was committed, and no member had handled {first}")
    return list(found.items())


def _judge_told(told: list[Told], partition: Partition, commits: list[Commit]) -> Found:
    known_ns = [at_ns for at_ns, _ in commits]
    highest = list(accumulate((offset for _, offset in commits), max))
    found = []
    for each in told:
        before = bisect_right(known_ns, each.asked_ns)
        offset = each.offsets.get(partition, 0)
        if before and offset < highest[before - 1]:
            found.append(("committed offset went back", f"{offset} was told, {highest[before - 1]} was known before"))
    return found
