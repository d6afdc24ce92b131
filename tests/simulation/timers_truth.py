"""Derive the truth about timed messages from the watched store: when each was staged, where it waited, when
it was delivered or recalled, each with the moment at which that was stored.

early                   a message was delivered before its due time, by the store's clock
lost message            it was acknowledged, not recalled, its topic exists, and it is not visible
passed over             the watermark passed a message that was not delivered, recalled or dropped
delivered apart         a message and the watermark that covers it are in different segments
staged below            a message was staged at or below the watermark
floor too high          a message is held back by a floor above the time at which it was staged
staged twice, duplicate a message was staged, or is visible, twice
out of order            messages of a partition are visible in another order than that of their keys
wrong place             a message is visible in another partition than the one it was sent to
delivered though recalled, recalled and visible
too late and not visible, told too late early, forgotten early    what a recall was told is not so
told before durable     an acknowledgement or "recalled" came before it was stored
nowhere, in two places  a message that waits is in no hidden partition that will be read, or in two
log start too far       a log start passed a message that waits
tombstone gone early    a recall was forgotten before the message's time
removed topic           a message was delivered `LEARNT_US` after the name of its topic was free, or later; until
                        then its owner may not have heard of it, and no reader finds such a record
not committed           a message of a transaction was staged for delivery, and its transaction is not committed
before its commit       a message of a transaction was staged for delivery before the decision was stored
hidden data shown       something of a hidden topic is among the files of plain readers
hanging message         something waits when all has come to rest
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import ledgermq_broker.timed.state.places
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_broker.timed.state.format import ledgermq_timers_pb2 as stored
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.stored_segments import StoredBatch
from tests.simulation.timers_homes import INTAKE, Home, Range, comes_from
from tests.simulation.timers_plan import UNITS_OF_WIDTHS
from tests.simulation.timers_rows import LEARNT_US, PREFIX, Key, LogStarts, Row, Seen, TimersTruth, Topics
from tests.simulation.watch import WatchedStore


class _Segment(NamedTuple):
    moment: int
    at_us: int
    batches: list[StoredBatch]


def topics_of(store: WatchedStore) -> Topics:
    """From the records of `__metadata`."""
    topics = Topics()
    living: dict[bytes, int] = {}
    for segment in store.history(keys.METADATA_BUNDLE):
        stored_in = keys.segment(keys.METADATA_BUNDLE, segment.slot)
        for batch in segment.batches if segment.valid else ():
            for offset, (key, value) in enumerate(batch.rows, batch.base_offset):
                assert key is not None
                if value is None:
                    topics.freed.setdefault(living.pop(key), store.first_us[stored_in])
                    continue
                record = fmt.TopicRecord.FromString(value)
                living[key] = topic_id = 0 if record.name == keys.METADATA_TOPIC else record.topic_id or offset
                topics.names[topic_id] = record.name
                if record.state == fmt.REMOVED:
                    topics.removed.setdefault(topic_id, segment.moment)
    return topics


def timers_truth(
    store: WatchedStore,
    bundles: Iterable[int],
    log_starts: Mapping[int, list[LogStarts]],
    kept_us: int,
) -> TimersTruth:
    """`log_starts`: of each bundle, in their order. `kept_us`: how long a recall is remembered."""
    truth = TimersTruth(topics_of(store))
    by_name = {name: topic_id for topic_id, name in truth.topics.names.items()}
    for bundle in bundles:
        fold = _Bundle(truth, bundle, by_name, kept_us)
        starts = list(log_starts.get(bundle, ()))
        for segment in _segments(store, bundle):
            while starts and starts[0].moment < segment.moment:
                fold.take_log_starts(starts.pop(0))
            fold.take(segment)
        for each in starts:
            fold.take_log_starts(each)
        fold.conclude()
    for key in store.first:
        if key.startswith(keys.PARQUET) and keys.is_internal(key.removeprefix(keys.PARQUET)):
            truth.report("hidden data shown", key)
    return truth


def _segments(store: WatchedStore, bundle: int) -> Iterator[_Segment]:
    """In their order. A segment counts from the moment at which all below it were there too."""
    moment = 0
    for segment in store.history(bundle):
        moment = max(moment, segment.moment)
        if segment.valid:
            yield _Segment(moment, store.first_us[keys.segment(bundle, segment.slot)], segment.batches)


class _Bundle:
    """Folds the log of one bundle, and judges each segment of it."""

    def __init__(self, truth: TimersTruth, bundle: int, by_name: Mapping[str, int], kept_us: int) -> None:
        self._truth = truth
        self._bundle = bundle
        self._timers = by_name.get(keys.TIMERS_TOPIC, -1)
        self._hidden = {by_name.get(keys.DELAYED_TOPIC, -1): False, by_name.get(keys.DELAYED_FAR_TOPIC, -1): True}
        self._kept_us = kept_us
        self._rows: dict[tuple[int, int], Row] = {}
        self._pending: list[tuple[Key, Row]] = []
        self._watermark: Key = (0, 1 << 63, 0)
        self._flushed = stored.Flushed()
        self._ranges: dict[tuple[bool, int], Range] = {}
        self._recalls: dict[tuple[int, int], int] = {}
        self._starts: dict[tuple[bool, int], int] = {}
        self._ends: Counter[tuple[bool, int]] = Counter()
        self._last: dict[tuple[int, int], tuple[Key, str]] = {}
        """Of each partition, what was delivered last."""

    def take(self, segment: _Segment) -> None:
        before, delivered = self._watermark, []
        has_moved = False
        for batch in segment.batches:
            place = self._place(batch.topic_id, batch.partition)
            if place is not None:
                self._ends[place] += batch.entry.record_count
                has_moved = has_moved or place != INTAKE
                self._take_blocks(segment, place, batch)
            elif not keys.is_internal(self._truth.topics.names.get(batch.topic_id, "")):
                delivered += self._take_visible(segment, batch)
        for batch in segment.batches:
            if batch.topic_id == self._timers:
                has_moved = self._take_records(segment, batch) or has_moved
        for row in delivered:
            if not before < row.key <= self._watermark:
                self._truth.report(
                    "delivered apart",
                    f"{row.value} {row.key} at {row.delivered[-1]}; the watermark goes from {before} to"
                    f" {self._watermark}",
                )
        self._pass_over(segment)
        if has_moved:
            self._judge_places("")

    def _place(self, topic_id: int, partition: int) -> tuple[bool, int] | None:
        far = self._hidden.get(topic_id)
        if far is None or topic_id < 0:
            return None
        return far, partition % (keys.FAR_PARTITIONS if far else keys.NEAR_PARTITIONS)

    def _take_blocks(self, segment: _Segment, place: tuple[bool, int], batch: StoredBatch) -> None:
        for offset, (key, value) in enumerate(batch.rows, batch.base_offset):
            assert key is not None
            assert value is not None
            header = stored.BlockHeader.FromString(key)
            dues, values = _content_of(value)
            home = Home(place, offset)
            if place == INTAKE:
                for number, (due_us, text) in enumerate(zip(dues, values, strict=True)):
                    row = Row(
                        text,
                        header.topic_id,
                        header.partition,
                        due_us,
                        (max(due_us, header.floor_us), offset, number),
                        segment.moment,
                        segment.at_us,
                        [home],
                    )
                    self._stage(row, header.floor_us)
                continue
            for number, text in enumerate(values):
                name = (
                    int.from_bytes(header.id_offsets[8 * number : 8 * number + 8], "little"),
                    int.from_bytes(header.id_rows[4 * number : 4 * number + 4], "little"),
                )
                found = self._rows.get(name)
                if (
                    found is None
                    or found.value != text
                    or (header.topic_id, header.partition)
                    != (
                        found.topic_id,
                        found.partition,
                    )
                ):
                    self._truth.report("moved wrongly", f"{text} at {home} has the id of {found}")
                else:
                    found.homes.append(home)

    def _stage(self, row: Row, floor_us: int) -> None:
        other = self._truth.rows.setdefault(row.value, row)
        if other is not row:
            self._truth.report("staged twice", f"{row.value}: {other.key} and {row.key} in bundle {self._bundle}")
        self._rows[row.key[1:]] = row
        heapq.heappush(self._pending, (row.key, row))
        if row.key <= self._watermark:
            self._truth.report("staged below", f"{row.value} {row.key}, the watermark is {self._watermark}")
        if floor_us > row.at_us + 1:
            self._truth.report(
                "floor too high", f"{row.value}: floor {floor_us}, {floor_us - row.at_us} µs after its put"
            )
        self._truth.coverage["a message was staged after its time"] += row.is_late

    def _take_visible(self, segment: _Segment, batch: StoredBatch) -> list[Row]:
        found, entry = [], batch.entry
        name = self._truth.topics.names[batch.topic_id]
        for offset, (_, value) in enumerate(batch.rows, batch.base_offset):
            text = (value or b"").decode(errors="replace")
            if not text.startswith(PREFIX):
                continue
            seen = Seen((f"{name}#{entry.topic_id}", entry.partition), offset, segment.moment, segment.at_us)
            self._truth.visible[text].append(seen)
            row = self._truth.rows.get(text)
            if row is None or self._rows.get(row.key[1:]) is not row:
                self._truth.report("not staged", f"{text} is visible at {seen}, and was not staged in this bundle")
                continue
            row.delivered.append(seen)
            found.append(row)
            self._judge_delivery(row, seen, entry)
        return found

    def _judge_delivery(self, row: Row, seen: Seen, entry: fmt.BatchEntry) -> None:
        report, target = self._truth.report, (entry.topic_id, entry.partition)
        if seen.at_us < row.due_us:
            report("early", f"{row.value} is visible {(row.due_us - seen.at_us) / 1e6:.6f} s before its time")
        if target != (row.topic_id, row.partition):
            report("wrong place", f"{row.value} was sent to {row.topic_id}-{row.partition}, and is at {seen}")
        if len(row.delivered) > 1:
            report("duplicate", f"{row.value} is visible at {row.delivered}")
        if row.recalled is not None:
            report("delivered though recalled", f"{row.value} at {seen}, recalled at {row.recalled}")
        last, value = self._last.get(target, (row.key, ""))
        if last > row.key:
            report("out of order", f"{row.value} {row.key} stands behind {value} {last} at {seen}")
        self._last[target] = row.key, row.value
        freed_us = self._truth.topics.freed.get(entry.topic_id)
        if freed_us is not None and freed_us + LEARNT_US <= seen.at_us:
            report("removed topic", f"{row.value} came to {seen} after the name was free")

    def _take_records(self, segment: _Segment, batch: StoredBatch) -> bool:
        """Return whether something was moved."""
        has_moved = False
        for name, value in batch.rows:
            assert name is not None
            kind, *rest = name.decode().split("/")
            if kind == "watermark" and value is not None:
                watermark = stored.Watermark.FromString(value)
                self._watermark = (watermark.due_us, watermark.offset, watermark.row)
            elif kind == "flushed" and value is not None:
                self._flushed = stored.Flushed.FromString(value)
                has_moved = True
            elif kind == "range":
                self._take_range((rest[0] == "1", int(rest[1])), value)
                has_moved = True
            elif kind == "recall":
                self._take_recall(segment, (int(rest[0]), int(rest[1])), value)
        return has_moved

    def _take_range(self, place: tuple[bool, int], value: bytes | None) -> None:
        coverage = self._truth.coverage
        before = self._ranges.pop(place, None)
        if value is None:
            if before is not None and place[0]:
                coverage["a range was turned"] += 1
            return
        found = stored.Range.FromString(value)
        self._ranges[place] = after = Range(found.from_us, found.to_us, found.begin_offset, found.turning)
        if before is None or before.from_us != after.from_us:
            width = after.to_us - after.from_us
            units = width * UNITS_OF_WIDTHS[-1] // ledgermq_broker.timed.state.places.NEAR_WIDTH_US
            coverage[f"a range began: {units} units"] += 1
        elif after.begin_offset > before.begin_offset:
            coverage["a range was turned in several segments"] += 1

    def _take_recall(self, segment: _Segment, name: tuple[int, int], value: bytes | None) -> None:
        row = self._rows.get(name)
        if value is not None:
            recall = stored.Recall.FromString(value)
            self._recalls[name] = recall.due_us
            if row is not None and row.topic_id not in recall.topic_ids:
                self._truth.coverage["a message was recalled as one of another topic"] += 1
            elif row is not None and row.recalled is None:
                row.recalled = segment.moment
                if row.delivered:
                    self._truth.report("delivered though recalled", f"{row.value} at {row.delivered}, recalled later")
        elif self._recalls.pop(name, None) is not None:
            self._truth.coverage["a tombstone went"] += 1
            if row is not None and row.key > self._watermark:
                self._truth.report("tombstone gone early", f"{row.value} {row.key}, watermark {self._watermark}")

    def _pass_over(self, segment: _Segment) -> None:
        while self._pending and self._pending[0][0] <= self._watermark:
            _, row = heapq.heappop(self._pending)
            row.passed = segment.moment
            if row.delivered or row.recalled is not None:
                continue
            if self._is_removed(row, segment.moment):
                self._truth.coverage["a message of a removed topic was dropped"] += 1
            else:
                self._truth.report(
                    "passed over",
                    f"{row.value} {row.key} homes {row.homes}: the watermark is {self._watermark} in bundle"
                    f" {self._bundle}",
                )

    def _is_removed(self, row: Row, moment: int) -> bool:
        return self._truth.topics.removed.get(row.topic_id, moment) < moment

    def _judge_places(self, when: str) -> None:
        """Each message that waits is in one place from which it will come into memory."""
        is_live = comes_from(self._flushed, self._ranges)
        removed = self._truth.topics.removed
        for _, row in self._pending:
            if row.delivered or row.recalled is not None or row.topic_id in removed:
                continue
            due_us = row.key[0]
            live = [home for home in row.homes if is_live(home, due_us)]
            if len(live) != 1:
                kind = "in two places" if live else "nowhere"
                self._truth.report(
                    kind,
                    f"{row.value} {row.key} of bundle {self._bundle}: {live} of {row.homes}, flushed"
                    f" {str(self._flushed).split()}, ranges {self._ranges}{when}",
                )
            elif live[0].offset < self._starts.get(live[0].place, 0):
                self._truth.report(
                    "log start too far",
                    f"{row.value} {row.key} of bundle {self._bundle} waits at {live[0]}, whose log starts at"
                    f" {self._starts[live[0].place]}",
                )

    def take_log_starts(self, starts: LogStarts) -> None:
        changed = False
        for partition, start in starts.starts.items():
            place = self._place(partition.topic_id, partition.partition)
            if place is not None and start > self._starts.get(place, 0):
                self._starts[place] = start
                changed = True
        if changed:
            self._judge_places(f" when log starts moved at {starts.moment}")

    def conclude(self) -> None:
        """Note what is not over."""
        truth, where = self._truth, f"bundle {self._bundle}"
        for _, row in self._pending:
            if row.recalled is None and row.topic_id not in truth.topics.removed:
                truth.waiting.append(f"{where}: {row.value} {row.key}")
            truth.waits_until_us = max(truth.waits_until_us, row.key[0])
        for place, found in self._ranges.items():
            truth.waiting.append(f"{where}: range {place} {found}")
            truth.waits_until_us = max(truth.waits_until_us, found.to_us)
        for name, due_us in self._recalls.items():
            truth.waiting.append(f"{where}: tombstone {name} {due_us}")
            truth.waits_until_us = max(truth.waits_until_us, due_us + self._kept_us)
        for place, end in self._ends.items():
            if self._starts.get(place, 0) < end:
                truth.waiting.append(f"{where}: log of {place} starts at {self._starts.get(place, 0)}, not at {end}")
        hops = Counter(len(row.homes) for row in self._rows.values())
        truth.coverage["a message waited in a range"] += sum(n for count, n in hops.items() if count > 1)
        truth.coverage["a message waited in two ranges"] += sum(n for count, n in hops.items() if count > 2)
        truth.coverage["a message waited in three ranges"] += sum(n for count, n in hops.items() if count > 3)


@lru_cache(maxsize=10_000)
def _content_of(block: bytes) -> tuple[list[int], list[str]]:
    """Return the due times and the values of a block; the same blocks are judged after every look."""
    batch = decode_batch(block)
    dues = [due.value if due.is_valid else 0 for due in batch.column("timestamp")]
    return dues, [(value or b"").decode(errors="replace") for value in batch.column("value").to_pylist()]
