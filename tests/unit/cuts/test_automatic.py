"""When automatic cuts are due, and how long each is kept: every cut for a time, then one of each period."""

from __future__ import annotations

import random

import pytest

from ledgermq.errors import InvalidConfig, ResourceExhausted
from ledgermq_broker.settings.processes import load_settings
from ledgermq_ledger.cuts.automatic import (
    CUTS_MAX,
    KEEP,
    Schedule,
    Tier,
    automatic_in,
    is_due,
    keep_ms_of,
    name_at,
    parse_schedule,
)
from ledgermq_ledger.cuts.record import begun, check_name, due, encode, key_of, taken
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.catalog import Catalog
from ledgermq_ledger.topics.topic import METADATA, encode_topic_record, topic_key

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
NOON_MS = 1_800_000_000_000 // DAY_MS * DAY_MS + DAY_MS // 2


class Life:
    """A catalog to which one controller after another appends."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.put(topic_key(METADATA.name), encode_topic_record(METADATA, creation=True))

    def put(self, key: bytes, value: bytes | None) -> int:
        self.catalog.apply(self.catalog.offset, key, value)
        return self.catalog.offset - 1

    def begin(self, schedule: Schedule, now_ms: int) -> str:
        name = name_at(now_ms)
        until_ms = now_ms + keep_ms_of(self.catalog, schedule, now_ms)
        self.put(key_of(name), encode(begun(self.catalog, name, until_ms, b"", now_ms, automatic=True)))
        return name

    def take(self, schedule: Schedule, now_ms: int) -> None:
        name = self.begin(schedule, now_ms)
        record = automatic_in(self.catalog)[-1]
        assert record.name == name
        self.put(key_of(name), encode(taken(self.catalog, name, record.id, now_ms)))

    def expire(self, now_ms: int) -> None:
        for record in due(self.catalog, now_ms):
            self.put(key_of(record.name), None)


def test_a_schedule_is_read() -> None:
    assert parse_schedule(0, KEEP) == Schedule(0, (Tier(0, DAY_MS), Tier(HOUR_MS, 7 * DAY_MS)))
    assert parse_schedule(5 * MINUTE_MS, "2h, THEN daily 30d, then every 14d 1000d").tiers == (
        Tier(0, 2 * HOUR_MS),
        Tier(DAY_MS, 30 * DAY_MS),
        Tier(14 * DAY_MS, 1000 * DAY_MS),
    )
    assert parse_schedule(5 * MINUTE_MS, KEEP).cuts == 288 + 168 + 2


@pytest.mark.parametrize(
    ("every_ms", "keep", "says"),
    [
        (0, "", "'' is no time"),
        (0, "forever", "'forever' is no time"),
        (0, "24h, hourly 7d", "'hourly 7d' is no part of it"),
        (0, "24h, then hourly", "'then hourly' is no part of it"),
        (0, "24h, then hourly 12h", "longer than the one before"),
        (0, "24h, then daily 7d, then hourly 30d", "longer than the one before"),
        (0, "1h, then every 5x 2d", "'5x' is no time"),
        (0, "1h, then every 1h 1d, then every 2h 2d, then every 3h 3d, then every 4h 4d", "at most 4 times, not 5"),
        (999, KEEP, "the minimum is 1000"),
        (MINUTE_MS, KEEP, "would keep 1610 cuts, more than 500"),
        (0, "99999999d", "is no time from 1s to 100 years"),
    ],
)
def test_a_wrong_schedule_names_the_setting(every_ms: int, keep: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says) as found:
        load_settings(None, cut_every_ms=every_ms, cut_keep=keep)
    assert "cut_" in str(found.value)


def test_names_are_names_of_cuts() -> None:
    assert name_at(NOON_MS).startswith("auto-2027")
    check_name(name_at(NOON_MS))


def test_one_is_due_after_each_time_and_when_a_clock_was_ahead() -> None:
    life, schedule = Life(), parse_schedule(5 * MINUTE_MS, KEEP)
    assert is_due(life.catalog, schedule, NOON_MS), "there is none yet"
    life.take(schedule, NOON_MS)
    assert not is_due(life.catalog, schedule, NOON_MS + 5 * MINUTE_MS - 1)
    assert is_due(life.catalog, schedule, NOON_MS + 5 * MINUTE_MS)
    assert not is_due(life.catalog, schedule, NOON_MS - MINUTE_MS), "this clock is slightly behind"
    assert is_due(life.catalog, schedule, NOON_MS - HOUR_MS), "the clock of the one before was wrong"


def test_a_cut_that_is_being_taken_is_none_of_its_hour() -> None:
    """It may be abandoned, and then the hour would have none."""
    life, schedule = Life(), parse_schedule(5 * MINUTE_MS, KEEP)
    life.begin(schedule, NOON_MS)
    assert keep_ms_of(life.catalog, schedule, NOON_MS + MINUTE_MS) == 7 * DAY_MS


def test_cuts_of_people_do_not_count() -> None:
    life, schedule = Life(), parse_schedule(5 * MINUTE_MS, KEEP)
    record = begun(life.catalog, "mine", 0, b"", NOON_MS)
    life.put(key_of("mine"), encode(record))
    life.put(key_of("mine"), encode(taken(life.catalog, "mine", 1, NOON_MS)))
    assert is_due(life.catalog, schedule, NOON_MS)
    assert keep_ms_of(life.catalog, schedule, NOON_MS) == 7 * DAY_MS


def test_one_that_is_kept_for_ever_stands_for_its_periods() -> None:
    life, schedule = Life(), parse_schedule(5 * MINUTE_MS, KEEP)
    life.take(schedule, NOON_MS)
    [record] = automatic_in(life.catalog)
    record.until_ms = 0
    life.put(key_of(record.name), encode(record))
    assert keep_ms_of(life.catalog, schedule, NOON_MS + 5 * MINUTE_MS) == DAY_MS


def test_they_are_bounded() -> None:
    life, schedule = Life(), parse_schedule(5 * MINUTE_MS, KEEP)
    for number in range(CUTS_MAX):
        record = fmt.CutRecord(name=f"auto-{number}", state=fmt.TAKEN, automatic=True, id=1 + number, begun_ms=1)
        life.put(key_of(record.name), encode(record))
    with pytest.raises(ResourceExhausted, match=r"500 automatic cuts.*ledgermq cut list"):
        keep_ms_of(life.catalog, schedule, NOON_MS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_each_cut_of_the_last_hours_and_one_of_each_hour_is_there(seed: int) -> None:
    """For eight days, with outages, in which no cut is taken, of up to five hours."""
    r, life, now_ms = random.Random(seed), Life(), NOON_MS
    schedule = parse_schedule(10 * MINUTE_MS, "6h, then hourly 2d, then daily 5d")
    times: list[int] = []
    while now_ms < NOON_MS + 8 * DAY_MS:
        life.expire(now_ms)
        if is_due(life.catalog, schedule, now_ms):
            life.take(schedule, now_ms)
            times.append(now_ms)
        there = {record.begun_ms for record in automatic_in(life.catalog)}
        assert len(there) <= schedule.cuts
        assert there >= {at for at in times if at > now_ms - 6 * HOUR_MS}
        for period, kept in ((HOUR_MS, 2 * DAY_MS), (DAY_MS, 5 * DAY_MS)):
            had = {at // period for at in times if now_ms - kept + period < at}
            assert had <= {at // period for at in there}
        now_ms += r.randrange(5 * HOUR_MS) if r.random() < 0.005 else r.randrange(10 * MINUTE_MS)
    assert len(there) > 50
