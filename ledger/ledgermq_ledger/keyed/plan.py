"""Plan one round of cleaning of a partition: the files that it reads, their groups, and the records
that it may leave out. Pure.

The dirty part is the log from the base version's end on, in whole Parquet files. A record of the
base or of the dirty part stays if the dirty part holds no later one of its key. These records are
removed as well: records below the log start; tombstones that have been in a version for
`delete.retention.ms`; and, with `compact,delete`, records older than `retention.ms`. With
`delete.when`, age is judged once, as of the last of its times, by what was in Parquet then, just as
retention judges the log (`ledgermq_ledger.garbage.topics.retention`).

For a topic that is no longer keyed, only whole files below the log start are removed, and nothing
is read. If the topic archives, only files deleted on demand are removed, because versions are never
archived.

Must not know: stores; clocks (times are given, by the store's clock).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.version import (
    NUMBER_MAX,
    KeyedFile,
    KeyedVersion,
    Published,
    aged_end,
    earlier_of,
    nothing_yet,
)
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.parquet.pages import written_ms
from ledgermq_ledger.topics.deletion_times import last_time_ms
from ledgermq_ledger.topics.settings import TopicSettings

DIRTY_RECORDS_MAX = 8 * 1024 * 1024
"""Records of one round: every task holds their keys in memory, some 100 bytes each if keys have 40.
"""
DIRTY_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""The same bound for large keys: bytes of the files that hold them."""


@dataclass(frozen=True, slots=True)
class CleaningInput:
    """A file that a task reads: of the base version (`clean`), or of the log, where it holds every
    offset from `first` to `last`.

    `expires`: its expired records are removed.
    """

    key: str
    first: int
    last: int
    size: int
    clean: KeyedFile | None = None
    expires: bool = True


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """A plan for version `base.number + 1`. `groups`: neighbouring files; each group becomes one
    file or none.

    `floor`, `aged_end`: offsets below which all records, or tombstones, are removed. `expired_us`:
    records before this time are removed; 0 = none. `expired_ms`: the time of that judgement, for
    the version. `kept`: files of the base that the next version names unchanged.
    """

    base: KeyedVersion
    end: int
    groups: tuple[tuple[CleaningInput, ...], ...]
    dirty: tuple[CleaningInput, ...]
    floor: int
    aged_end: int
    expired_us: int
    expired_ms: int
    earlier: tuple[tuple[int, int], ...]
    kept: tuple[KeyedFile, ...] = ()


def make_cleaning_plan(
    place: PartitionId,
    topic: str,
    cluster: str,
    published: Published | None,
    counters: fmt.PartitionCheckpoint,
    log: Sequence[fmt.ParquetFile],
    settings: TopicSettings,
    *,
    everything: bool,
    now_ms: int,
    min_age_ms: int,
    altered_ms: int = 0,
    unpublished: frozenset[int] = frozenset(),
) -> CleaningPlan | None:
    """Return the next round, or None if none is due. `log`: the Parquet files of the partition from
    the base's end on; none if it is not keyed.

    `min_age_ms`: for so long versions are remembered by those after them, or for
    `delete.retention.ms`. `altered_ms`: when the settings were; a time of `delete.when` up to then
    counts for nothing. `unpublished`: numbers for which a topic that is no longer keyed has old files.
    """
    base = published.version if published is not None else nothing_yet(place, topic, cluster, counters.parquet_start)
    start = max(base.end, counters.parquet_start)
    kept = [file for file in log if file.last_offset >= counters.log_start]
    if kept and kept[0].first_offset > max(start, counters.log_start):
        raise AssertionError(
            f"{keys.keyed_folder(place)}: the log begins at {kept[0].first_offset}, but it is needed from {start}"
        )
    judged_ms = _judged_ms(settings, now_ms, altered_ms)
    ripe = list(_ripe(kept, now_ms - settings.min_compaction_lag_ms, judged_ms if settings.delete_when else NUMBER_MAX))
    earlier = earlier_of(published, max(settings.delete_retention_ms, min_age_ms), now_ms)
    dirty = tuple(_some(ripe))
    plan = CleaningPlan(
        base=base,
        end=dirty[-1].last + 1 if dirty else start,
        groups=(),
        dirty=dirty,
        floor=_floor(counters, settings),
        aged_end=max(base.tombstones_to, aged_end(earlier, settings.delete_retention_ms, now_ms))
        if settings.keyed
        else base.tombstones_to,
        expired_us=max(0, judged_ms - settings.retention_ms) * 1000 if judged_ms else 0,
        expired_ms=max(base.expired_ms, judged_ms),
        earlier=earlier,
    )
    if not settings.keyed:
        is_lost = (
            published is None and counters.log_start < counters.parquet_start
        )  # then these files are all that there is
        return None if is_lost else _plan_of_stale_version(plan, unpublished)
    expires = not settings.delete_when or judged_ms > base.expired_ms
    if not _is_due(plan, ripe, settings, everything, expires):
        return None
    clean = [CleaningInput(file.key, file.first, file.last, file.size, file, expires) for file in base.files]
    inputs = [each for each in (*clean, *dirty) if each.last >= plan.floor]
    return replace(plan, groups=tuple(_grouped(inputs, settings.parquet_target_bytes)))


def _floor(counters: fmt.PartitionCheckpoint, settings: TopicSettings) -> int:
    return counters.deleted_to if settings.delete_action == "archive" and not settings.keyed else counters.log_start


def _plan_of_stale_version(plan: CleaningPlan, unpublished: frozenset[int]) -> CleaningPlan | None:
    """Return a plan that is due also if files of the next version were put and never published.
    Once its number is taken, no process can publish them, and they may be removed.
    """
    kept = tuple(file for file in plan.base.files if file.last >= plan.floor)
    return replace(plan, kept=kept) if kept != plan.base.files or plan.base.number + 1 in unpublished else None


def _judged_ms(settings: TopicSettings, now_ms: int, altered_ms: int) -> int:
    """Return the time as of which records expire; 0: none expire."""
    if not settings.forgets_keys:
        return 0
    if not settings.delete_when:
        return now_ms
    last_ms = last_time_ms(settings.delete_when, settings.delete_when_timezone, now_ms)
    return last_ms if last_ms > altered_ms else 0


def _ripe(log: Iterable[fmt.ParquetFile], written_ms_max: int, judged_ms: int) -> Iterable[CleaningInput]:
    """Yield the files that are old enough, up to the first that is not.

    `judged_ms`: files committed later do not expire.
    """
    for file in log:
        if written_ms(file) > written_ms_max:
            return
        yield CleaningInput(
            file.key, file.first_offset, file.last_offset, file.size, expires=file.committed_ms <= judged_ms
        )


def _some(ripe: Iterable[CleaningInput]) -> Iterable[CleaningInput]:
    """Yield as many files as one round takes, at least one."""
    records = size_bytes = 0
    for file in ripe:
        records += file.last + 1 - file.first
        size_bytes += file.size
        if records > file.last + 1 - file.first and (records > DIRTY_RECORDS_MAX or size_bytes > DIRTY_BYTES_MAX):
            return
        yield file


def _is_due(
    plan: CleaningPlan, ripe: Sequence[CleaningInput], settings: TopicSettings, everything: bool, expires: bool
) -> bool:
    """Return True if the round is worth its cost. `expires`: expired records of the base are
    removed.
    """
    if everything and ripe:
        return True
    base = plan.base
    dirty_bytes = sum(file.size for file in ripe)
    if dirty_bytes and dirty_bytes >= settings.min_cleanable_dirty_ratio * (dirty_bytes + base.size):
        return True
    if any(file.last < plan.floor for file in base.files):
        return True
    if plan.aged_end > base.tombstones_to and any(
        file.tombstones and file.first < plan.aged_end for file in base.files
    ):
        return True
    at_once = everything or settings.delete_when
    slack_us = (
        0 if at_once else settings.retention_ms * 100
    )  # a tenth of it, so that single expired records cause no round
    return (
        expires
        and plan.expired_us > 0
        and any(0 < file.timestamp_min_us < plan.expired_us - slack_us for file in base.files)
    )


def _grouped(inputs: Iterable[CleaningInput], bytes_max: int) -> Iterable[tuple[CleaningInput, ...]]:
    group: list[CleaningInput] = []
    for each in inputs:
        if group and sum(file.size for file in group) + each.size > bytes_max:
            yield tuple(group)
            group = []
        group.append(each)
    if group:
        yield tuple(group)
