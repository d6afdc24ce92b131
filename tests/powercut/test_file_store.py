"""After a power cut at any step the file store holds all that it promised, and nothing half."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.object_store.file.store import FileStore
from tests.powercut.cutting import CUTS, check_cuts
from tests.powercut.disk_model import OLDEST, DiskModel
from tests.powercut.recording import Killed, Recording
from tests.powercut.witness import EXPECTED, Witness, promises_of
from tests.stores.backends import seeded_sources


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    top = tmp_path / "disk"
    top.mkdir()
    found = Recording(top)
    found.install(monkeypatch)
    return found


@pytest.fixture
async def witness(recording: Recording) -> AsyncIterator[Witness]:
    async with FileStore(recording.top / "deep" / "root", seeded_sources(1)) as store:
        yield Witness(store, recording)


@asynccontextmanager
async def mortal_store(root: Path) -> AsyncIterator[FileStore]:
    """The store of a process that is killed meanwhile."""
    store = FileStore(root, seeded_sources(1))
    yield store
    with suppress(Killed):
        await store.close()


async def check(events: Sequence[Any], left: Path) -> None:
    await promises_of(events).check(left / "deep" / "root")


async def writer(store: Witness, rng: random.Random, name: int) -> None:
    """Races others for numbers, replaces its heartbeat, deletes, opens and closes fences."""
    for turn in range(12):
        try:
            match rng.randrange(7):
                case 0 | 1:
                    content = rng.randbytes(rng.choice((0, 10, 5000)))
                    await store.put_if_absent(
                        f"ledgers/0001/segments/{rng.randrange(12):020d}", [content[:7], content[7:]]
                    )
                case 2:
                    await store.put(f"brokers/b{name}.json", rng.randbytes(30))
                case 3:
                    key = f"ledgers/0002/{name}/{turn}"
                    await store.put_if_absent(key, [b"short-lived"])
                    await store.delete([key])
                case 4:
                    fence = f"0001-{turn}-{name}"
                    await store.open_fence(fence)
                    puts = await store.fenced_puts(fence, [key := f"parquet/topic=t/partition={name}/{turn}"], 1000)
                    await puts.put_if_absent(key, [rng.randbytes(100)])
                    if rng.random() < 0.7:
                        await store.close_fence(fence)
                case 5:
                    key = f"keyed/_7/partition=0/files/{name}-{turn}"
                    await store.put_if_absent(key, [b"in a folder that comes and goes"])
                    if rng.random() < 0.7:
                        await store.delete([key])
                case 6:
                    await store.get(f"ledgers/0001/segments/{rng.randrange(12):020d}")
        except EXPECTED:
            pass


@pytest.mark.parametrize("seed", range(2))
async def test_a_power_cut_takes_nothing_back(
    witness: Witness, recording: Recording, tmp_path: Path, seed: int
) -> None:
    async with asyncio.TaskGroup() as group:
        for name in range(3):
            group.create_task(writer(witness, random.Random(f"{seed}/{name}"), name))
    assert await check_cuts(recording.log, recording.top, tmp_path / "left", seed, CUTS, check) > 0


async def test_two_stores_on_one_folder_promise_the_same(recording: Recording, tmp_path: Path) -> None:
    """As two processes: what one has made durable counts for the other only after its own fsync."""
    root = recording.top / "deep" / "root"
    async with (
        FileStore(root, seeded_sources(1)) as one,
        FileStore(root, seeded_sources(2)) as two,
        asyncio.TaskGroup() as group,
    ):
        for name, store in enumerate((one, two)):
            group.create_task(writer(Witness(store, recording), random.Random(name), name))
    await check_cuts(recording.log, recording.top, tmp_path / "left", 1, CUTS // 2, check)


@pytest.mark.parametrize("died_at", ["fsync", "unlink"])
async def test_what_a_reader_has_seen_survives_although_its_writer_was_killed(
    recording: Recording, tmp_path: Path, died_at: str
) -> None:
    """A reader may build on what it saw: a checkpoint on a segment, a plan on a slot.

    So it must be durable before it is shown.
    """
    root = recording.top / "deep" / "root"
    key = "ledgers/0001/segments/00000000000000000007"
    async with mortal_store(root) as killed, FileStore(root, seeded_sources(2)) as reader:
        witness = Witness(killed, recording)
        await witness.put_if_absent("ledgers/0001/segments/00000000000000000006", [b"before"])
        folder = (root / key).parent

        def dies(what: str, path: Path) -> bool:
            return what == died_at and (root / key).exists() and (path == folder or path.parent.name == ".tmp")

        recording.kill_at = dies
        with pytest.raises(Killed):
            await witness.put_if_absent(key, [b"content"])
        recording.kill_at = lambda what, path: False
        assert await Witness(reader, recording).get(key) == b"content"
    await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 40, check)


async def test_what_was_found_under_a_closed_fence_is_durable_once_that_is_asked_for(
    recording: Recording, tmp_path: Path
) -> None:
    """As a round does that a full store cuts short: it reads what is there.

    The writer was killed just after the link.
    """
    root = recording.top / "deep" / "root"
    key = "parquet/topic=t/partition=0/f"
    async with mortal_store(root) as killed, FileStore(root, seeded_sources(2)) as runner:
        witness = Witness(runner, recording)
        await witness.open_fence("f")
        puts = await Witness(killed, recording).fenced_puts("f", [key], 1000)
        recording.kill_at = lambda what, path: what == "fsync" and (root / key).exists() and path == (root / key).parent
        with pytest.raises(Killed):
            await puts.put_if_absent(key, [b"content"])
        recording.kill_at = lambda what, path: False
        await witness.close_fence("f")
        assert await runner.get(key) == b"content"
        await witness.make_durable([key])
        await witness.put_if_absent("ledgers/0001/checkpoints/00000000000000000001", [b"names it"])
    await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 40, check)


async def test_a_folder_that_another_made_anew_is_durable_before_a_put_in_it_counts(
    recording: Recording, tmp_path: Path
) -> None:
    """It was emptied and removed; who makes it again is killed before its fsync; a third still
    believes that it has made it durable.
    """
    root = recording.top / "deep" / "root"
    place = "parquet/topic=t/partition=0/"
    async with (
        mortal_store(root) as killed,
        FileStore(root, seeded_sources(2)) as cleaner,
        FileStore(root, seeded_sources(3)) as third,
        FileStore(root, seeded_sources(4)) as reader,
    ):
        await Witness(third, recording).put_if_absent(f"{place}first", [b"content"])
        await Witness(killed, recording).put_if_absent("parquet/topic=u/partition=0/other", [b"content"])
        await Witness(cleaner, recording).delete([f"{place}first"])
        assert [path.name for path in (root / "parquet").iterdir()] == ["topic=u"]
        recording.kill_at = lambda what, path: what == "fsync" and path.name == "parquet"
        with pytest.raises(Killed):
            await Witness(killed, recording).put_if_absent(f"{place}second", [b"content"])
        recording.kill_at = lambda what, path: False
        (root / place).mkdir()
        await Witness(third, recording).put_if_absent(f"{place}third", [b"content"])
        await Witness(reader, recording).get(f"{place}third")
    await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 60, check)


async def test_a_file_that_is_not_yet_linked_is_never_seen(recording: Recording, tmp_path: Path) -> None:
    root = recording.top / "deep" / "root"
    async with mortal_store(root) as killed, FileStore(root, seeded_sources(2)) as reader:
        recording.kill_at = lambda what, path: what == "link"
        with pytest.raises(Killed):
            await Witness(killed, recording).put_if_absent("a/b", [b"content"])
        recording.kill_at = lambda what, path: False
        with pytest.raises(ObjectMissing):
            await reader.get("a/b")
    await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 40, check)


# The model itself.


async def test_without_fsync_the_model_loses_what_was_written(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above would prove nothing."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    async with FileStore(recording.top / "deep" / "root", seeded_sources(1)) as store:
        await Witness(store, recording).put_if_absent("a/b", [b"content"])
    with pytest.raises(AssertionError, match="was acknowledged"):
        await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 40, check)


@pytest.mark.parametrize("forgotten", ["file", "folder"])
async def test_each_fsync_is_needed(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    import os
    import stat

    whole = os.fsync

    def forgetful(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder != (forgotten == "folder"):
            whole(descriptor)

    monkeypatch.setattr(os, "fsync", forgetful)
    async with FileStore(recording.top / "deep" / "root", seeded_sources(1)) as store:
        witness = Witness(store, recording)
        for number in range(4):
            await witness.put_if_absent(f"a/{number}", [b"content"])
    with pytest.raises(AssertionError):
        await check_cuts(recording.log, recording.top, tmp_path / "left", 1, 80, check)


def test_the_model_keeps_what_was_synced_and_forgets_the_rest(tmp_path: Path) -> None:
    top = tmp_path / "disk"
    model = DiskModel(top)
    model.mkdir(top / "a")
    model.sync(model.root)
    model.create(top / "a" / "old").data += b"old"
    model.sync(model.node(top / "a" / "old"))
    model.sync(model.node(top / "a"))
    model.rename(top / "a" / "old", top / "a" / "new")
    model.cut_power(tmp_path / "left", OLDEST)
    assert [path.name for path in (tmp_path / "left" / "a").iterdir()] == ["old"]
    assert (tmp_path / "left" / "a" / "old").read_bytes() == b"old"
