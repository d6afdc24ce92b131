"""`compact,delete`: keys that were not written for `retention.ms` go, and then there is quiet."""

from __future__ import annotations

from tests.stores.ahead import AheadStore
from tests.worlds.keyed_root import HOUR_MS, Keyed


async def test_the_last_record_that_stays_however_old_makes_no_version_after_version() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1, 2]
    keyed.wait(1.2)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2]
    assert await keyed.clean() == 0
    keyed.wait(1.2)
    assert await keyed.clean() == 0


async def test_what_was_the_last_record_goes_when_others_follow() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"))
    await keyed.compact()
    await keyed.clean()
    keyed.wait(1.2)
    assert await keyed.clean() == 1
    assert await keyed.clean() == 0
    await keyed.put((b"b", b"2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]


async def test_a_last_record_that_is_older_than_the_others_hides_none_of_them() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"))
    await keyed.put((b"b", b"2"), age_ms=HOUR_MS // 2)
    await keyed.compact()
    await keyed.clean()
    keyed.wait(0.7)
    assert await keyed.clean() == 1
    assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1]
    keyed.wait(0.5)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]
    assert await keyed.clean() == 0


async def test_a_clock_of_the_store_that_is_ahead_takes_no_key() -> None:
    keyed = await Keyed.open()
    await keyed.put((b"a", b"1"), (b"b", b"2"))
    await keyed.compact()
    assert await keyed.clean(store=AheadStore(keyed.root.store, 240 * HOUR_MS)) == 1
    assert await keyed.offsets() == [0, 1]
    keyed.wait(1.2)
    assert await keyed.clean(store=AheadStore(keyed.root.store, 240 * HOUR_MS)) == 1
    assert await keyed.offsets() == [1]


NIGHTLY = "0 6 * * *"
"""The clock begins at midnight."""


async def test_between_the_times_of_delete_when_no_key_goes() -> None:
    keyed = await Keyed.open(delete_when=NIGHTLY)
    await keyed.put((b"a", b"1"), (b"b", b"2"))
    await keyed.compact()
    keyed.wait(5.9)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [0, 1]
    assert await keyed.clean() == 0
    keyed.wait(0.2)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]
    assert await keyed.clean() == 0


async def test_keys_are_judged_as_of_the_time_that_has_passed() -> None:
    keyed = await Keyed.open(delete_when=NIGHTLY)
    keyed.wait(5.5)
    await keyed.put((b"a", b"1"), (b"b", b"2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(8)  # no process ran at six, when they were half an hour old
    assert await keyed.clean() == 0
    keyed.wait(16.6)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]


async def test_a_time_before_the_topic_was_altered_counts_for_nothing() -> None:
    keyed = await Keyed.open(retention_ms="-1", delete_when=NIGHTLY)
    await keyed.put((b"a", b"1"), (b"b", b"2"))
    await keyed.compact()
    assert await keyed.clean() == 1
    keyed.wait(7)
    await keyed.alter(retention_ms=str(HOUR_MS))
    assert await keyed.clean() == 0
    keyed.wait(23.1)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [1]


async def test_what_is_written_behind_the_time_with_an_old_date_waits_for_the_next() -> None:
    keyed = await Keyed.open(delete_when=NIGHTLY)
    keyed.wait(7)
    for key in (b"a", b"b", b"c"):
        await keyed.put((key, b"1"), age_ms=100 * HOUR_MS)
        await keyed.compact()
        keyed.wait(0.1)
        assert await keyed.clean() == 1
        assert await keyed.clean() == 0
    assert await keyed.offsets() == [0, 1, 2]
    keyed.wait(23)
    assert await keyed.clean() == 1
    assert await keyed.offsets() == [2]
    assert await keyed.clean() == 0


async def test_what_was_in_parquet_at_the_time_and_is_cleaned_later_goes() -> None:
    keyed = await Keyed.open(delete_when=NIGHTLY)
    await keyed.put((b"a", b"1"))
    await keyed.compact()
    keyed.wait(5)
    await keyed.put((b"b", b"2"))
    await keyed.compact()
    keyed.wait(1.5)
    await keyed.put((b"c", b"3"))
    await keyed.compact()
    assert await keyed.clean() == 1
    assert (await keyed.version()).expired_ms == (keyed.clock.now_us // 1000) - HOUR_MS // 2
    assert await keyed.offsets() == [1, 2]
