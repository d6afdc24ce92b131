"""`compact,delete`: keys that were not written for `retention.ms` go, and then there is quiet."""

from __future__ import annotations

from tests.keyed_root import HOUR_MS, Keyed


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
