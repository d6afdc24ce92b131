"""The file store on disks that are full, read-only, gone or broken, and with processes that are
killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import DataDamaged, InvalidRequest, StoreFull, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store import settle
from ledgermq_ledger.object_store.contract import AlreadyExists, FenceClosed, ObjectMissing, StoreUncertain
from ledgermq_ledger.object_store.file import FileStore
from ledgermq_ledger.object_store.probe import probe_store
from tests.servers.small_disk import small_disk

NOBODY = 65534


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    async with FileStore(tmp_path / "root") as store:
        yield store


async def keys_of(store: FileStore) -> list[str]:
    return [info.key async for info in store.list("")]


def files_below(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and "clock-" not in path.name
    )


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _socket, _device])
async def test_what_is_no_file_is_reported_and_not_waited_for(
    store: FileStore, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """A pipe that nothing writes to would hold its reader for ever."""
    await store.put_if_absent("a/1", [b"sound"])
    make(tmp_path / "root" / "a" / "2")
    assert await keys_of(store) == ["a/1", "a/2"]
    async with asyncio.timeout(60):
        for read in (store.get("a/2"), store.get_range("a/2", 0, 10), store.get_suffix("a/2", 10)):
            with pytest.raises(DataDamaged, match="a/2: the name belongs to a pipe, a socket or a device"):
                await read
    assert await store.get("a/1") == b"sound"
    await store.delete(["a/2"])
    assert await keys_of(store) == ["a/1"]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from ledgermq_ledger.object_store.file import FileStore
from ledgermq.errors import StoreUnusable
async def main():
    async with FileStore(Path(sys.argv[1])) as store:
        await store.put_if_absent("a/small", [b"x" * 1000])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        for put in (store.put_if_absent("a/large", [b"x" * 60_000] * 2), store.put("a/large", b"x" * 120_000)):
            try:
                await put
            except StoreUnusable as error:
                print(error)
        await store.put_if_absent("a/small-again", [b"x" * 1000])
asyncio.run(main())
"""


def test_an_object_that_does_not_fit_leaves_nothing_and_is_told(tmp_path: Path) -> None:
    done = run_python(FULL_DISK, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the limit on the size of a file is reached") == 2
    assert files_below(tmp_path) == ["a/small", "a/small-again"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Where none may be mounted, the limit on file sizes is tried in any case."""
    with small_disk(tmp_path / "disk", 1) as folder:
        yield folder


async def test_a_full_disk(disk: Path, sources: Sources) -> None:
    async with FileStore(disk / "root") as store:
        await store.put_if_absent("a/1", [b"x" * 300_000])
        with pytest.raises(StoreFull, match="no space is left"):
            await store.put_if_absent("a/2", [b"x" * 900_000])
        with pytest.raises(ObjectMissing):
            await store.get("a/2")
        assert files_below(disk / "root") == ["a/1"]
        await store.delete(["a/1"])
        await store.put_if_absent("a/2", [b"x" * 900_000])  # room again: the same store goes on
        with pytest.raises(StoreFull):
            await probe_store(_Filled(store), sources)


def room_for(file: FileIO) -> bool:
    try:
        return file.write(b"x" * 4096) > 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


class _Filled(FileStore):
    """Fills what is left of the disk before each put."""

    def __init__(self, inner: FileStore) -> None:
        super().__init__(inner._root)

    async def put_if_absent(self, key: str, buffers: object) -> None:
        filler = self._root / "filler"
        with filler.open("ab", buffering=0) as file:
            while room_for(file):
                pass
        await super().put_if_absent(key, [b"x" * 8192])


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """No permission stops root: give it the rights of another user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def read_only_root() -> Iterator[Path]:
    """A root that holds `a/b` and that every user may read and none may write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "root" / "a").mkdir(parents=True)
        (folder / "root" / "a" / "b").write_bytes(b"data")
        for path in (folder / "root" / "a", folder / "root", folder):
            path.chmod(0o555)
        yield folder / "root"
        for path in (folder, folder / "root", folder / "root" / "a"):
            path.chmod(0o755)


async def test_a_read_only_folder_can_be_read_and_refuses_puts(
    read_only_root: Path, unprivileged: None, sources: Sources
) -> None:
    async with FileStore(read_only_root) as store:
        assert await store.get("a/b") == b"data"
        assert await keys_of(store) == ["a/b"]
        for call in (
            store.put_if_absent("a/c", [b"x"]),
            store.put("a/b", b"x"),
            store.delete(["a/b"]),
            store.open_fence("f"),
            probe_store(store, sources),
        ):
            with pytest.raises(StoreUnusable, match="permission is denied"):
                await call
        assert await store.get("a/b") == b"data"


async def test_a_folder_that_vanished_is_no_fresh_start(tmp_path: Path, store: FileStore) -> None:
    await store.put_if_absent("a/b", [b"x"])
    shutil.rmtree(tmp_path / "root")
    with pytest.raises(StoreUnusable, match="no longer exists"):
        await store.put_if_absent("a/c", [b"x"])
    assert not (tmp_path / "root").exists()


async def test_a_file_where_the_root_should_be(tmp_path: Path) -> None:
    (tmp_path / "root").write_bytes(b"")
    async with FileStore(tmp_path / "root") as store:
        with pytest.raises(StoreUnusable, match="the root has to be a folder"):
            await store.put_if_absent("a/b", [b"x"])


async def test_a_file_where_a_folder_has_to_be(store: FileStore) -> None:
    await store.put_if_absent("a/b", [b"x"])
    with pytest.raises(StoreUnusable, match="a file is in the place of a folder"):
        await store.put_if_absent("a/b/c", [b"x"])


async def test_a_name_too_long_for_the_file_system(store: FileStore) -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        await store.put_if_absent("a/" + "x" * 300, [b"x"])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk, in order; descriptors by the name of what was opened."""
    done: list[str] = []
    names: dict[int, str] = {}

    def watch(name: str, describe: Callable[..., str]) -> None:
        real = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            if name == "open":
                names[result] = Path(arguments[0]).name
            else:
                done.append(f"{name} {describe(*arguments)}")
            return result

        monkeypatch.setattr(os, name, watched)

    watch("open", str)
    for name in ("writev", "fsync"):
        watch(name, lambda descriptor, *_: "temp" if len(names[descriptor]) == 32 else names[descriptor])
    watch("link", lambda _, to: Path(to).name)
    watch("replace", lambda _, to: Path(to).name)
    watch("mkdir", lambda path, *_: Path(path).name)
    return done


async def test_nothing_is_acknowledged_before_it_and_all_above_it_would_survive_a_power_cut(
    tmp_path: Path, store: FileStore, steps: list[str]
) -> None:
    """The file before its name, the name before the answer, and each new folder's entry before
    anything in it.
    """
    await store.put_if_absent("a/b/c", [b"x"])
    made = ["mkdir root", f"fsync {tmp_path.name}", f"fsync {tmp_path.name}", "mkdir .tmp", "fsync root"]
    assert steps == [
        *made,
        "writev temp",
        "fsync temp",
        "mkdir a",
        "fsync root",
        "mkdir b",
        "fsync a",
        "link c",
        "fsync b",
    ]
    steps.clear()
    await store.put_if_absent("a/b/d", [b"x"])
    assert steps == ["writev temp", "fsync temp", "link d", "fsync b"]
    steps.clear()
    await store.put("a/b/d", b"y")
    assert steps == ["writev temp", "fsync temp", "replace d", "fsync b"]
    steps.clear()
    with pytest.raises(AlreadyExists):  # who is told that it exists may believe that it stays
        await store.put_if_absent("a/b/d", [b"z"])
    assert steps == ["writev temp", "fsync temp", "fsync b"]
    steps.clear()
    await store.delete(["a/b/c", "a/b/d"])
    assert steps == ["fsync b"]
    steps.clear()
    await store.open_fence("f")
    assert steps[-2:] == ["mkdir f", "fsync _tmp"]
    assert steps.index("fsync parquet") > steps.index("mkdir _tmp")
    steps.clear()
    await store.close_fence("f")
    assert steps == ["fsync _tmp"]


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreUnusable),
        (errno.EIO, StoreUncertain),
        (errno.ESTALE, StoreUncertain),
        (errno.EMFILE, StoreUncertain),
    ],
)
@pytest.mark.parametrize("step", ["open", "writev", "fsync", "link"])
async def test_every_step_of_a_put_may_fail(
    tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, step: str, number: int, error: type[Exception]
) -> None:
    await store.put_if_absent("a/before", [b"x"])

    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(error):
            await store.put_if_absent("a/b", [b"x"])
    assert files_below(tmp_path / "root") == ["a/before"]
    await store.put_if_absent("a/b", [b"x"])


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_put_that_landed_has_succeeded_although_its_temporary_file_stays(
    tmp_path: Path, store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, is_fenced: bool
) -> None:
    """Told that nothing was put, the caller would put the same records again, at another place."""
    await store.put_if_absent("a/before", [b"x"])
    await store.open_fence("f")
    puts = await store.fenced_puts("f", ["a/b"], 60_000)
    real = os.unlink

    def unlink(path: Path, *arguments: Any, **options: Any) -> None:
        if len(Path(path).name) == 32:
            raise OSError(number, os.strerror(number))
        real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        await (puts.put_if_absent if is_fenced else store.put_data)("a/b", [b"x"])
        with pytest.raises(AlreadyExists):
            await (puts.put_if_absent if is_fenced else store.put_data)("a/b", [b"x"])
    assert await store.get("a/b") == b"x"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EMFILE])
@pytest.mark.parametrize("exists", [False, True])
async def test_a_put_whose_name_is_there_is_uncertain_where_its_folder_cannot_be_opened(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, number: int, exists: bool
) -> None:
    """Also where the name was there before: it may be the same put's, sent twice."""
    await store.put_if_absent("a/before", [b"x"])
    real = os.open

    def fail(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_DIRECTORY and Path(path).name == "a":
            raise OSError(number, os.strerror(number))
        return real(path, flags, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(StoreUncertain, match="may not be durable"):
            await store.put_if_absent("a/before" if exists else "a/b", [b"x"])
        if not exists:
            with pytest.raises(StoreUncertain, match="may not be durable"):
                await store.put("a/b", b"x")


async def test_a_folder_whose_fsync_failed_is_never_believed_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put_if_absent("a/before", [b"x"])
    real = os.fsync
    calls = []

    def fail_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:  # the first is the file's
            raise OSError(errno.EIO, "input/output error")
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_second)
        with pytest.raises(StoreUncertain, match="may not be durable"):
            await store.put_if_absent("a/b", [b"x"])
    for call in (store.get("a/before"), store.put_if_absent("a/c", [b"x"]), store.head("a/b")):
        with pytest.raises(StoreUnusable, match="then restart"):
            await call


async def test_a_read_only_disk_can_be_read_although_a_put_was_cut_off_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file still has its temporary name, and its folder cannot be fsynced."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with FileStore(tmp_path / "root") as store:
        await store.put_if_absent("a/b", [b"x"])
        os.link(tmp_path / "root" / "a" / "b", tmp_path / "root" / ".tmp" / ("0" * 32))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            assert await store.get("a/b") == b"x"


async def test_a_put_that_others_may_see_is_never_said_to_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A definite error means to a producer that nothing was stored; here another process reads it."""
    real = os.fsync
    calls = []

    def fail_from_second(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) >= 2:  # the first is the file's
            raise OSError(errno.EIO, "input/output error")
        real(descriptor)

    async with FileStore(tmp_path / "root") as failing, FileStore(tmp_path / "root") as other:
        await failing.put_if_absent("a/before", [b"x"])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_from_second)
            patch.setattr(settle, "ATTEMPTS_MAX", 2)
            outcome = await settle.settle_put(failing, "a/b", [b"put id"], sources=Sources())
        assert outcome is settle.PutOutcome.UNKNOWN
        assert await other.get("a/b") == b"put id"


KILLED = """
import asyncio, sys
from pathlib import Path
from ledgermq_ledger.object_store.file import FileStore
async def main():
    async with FileStore(Path(sys.argv[1])) as store:
        await store.open_fence("fence")
        names = [f"b/{i}" for i in range(100_000)]
        fenced = await store.fenced_puts("fence", names, 60_000)
        for i in range(100_000):
            data = b"%08d" % i * 40_000
            await asyncio.gather(
                *(store.put_if_absent(f"a/{i}-{j}", [data]) for j in range(6)),
                store.put("live", data),
                fenced.put_if_absent(f"b/{i}", [data]),
            )
            print(i, flush=True)
asyncio.run(main())
"""


def acknowledged_until_killed(root: Path, rounds: int) -> list[int]:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(rounds)]
        process.send_signal(signal.SIGKILL)
        return acknowledged + [int(line) for line in process.stdout if line.endswith("\n")]


@pytest.mark.parametrize("rounds", [1, 3])
async def test_kill_9_in_the_middle_of_puts_leaves_nothing_half(tmp_path: Path, rounds: int) -> None:
    root = tmp_path / "root"
    acknowledged = acknowledged_until_killed(root, rounds)
    async with FileStore(root) as store:
        keys = await keys_of(store)
        for i in acknowledged:
            assert {f"a/{i}-{j}" for j in range(6)} | {f"b/{i}"} <= set(keys)
        for key in keys:
            data = await store.get(key)
            assert len(data) == 320_000
            assert data == data[:8] * 40_000
        await store.close_fence("fence")
        assert list(await store.list_fences()) == []
        assert await keys_of(store) == keys
        await store.put_if_absent("a/after", [b"x"])


async def test_left_temporary_files_are_removed_once_they_are_old(tmp_path: Path) -> None:
    folder = tmp_path / "root" / ".tmp"
    folder.mkdir(parents=True)
    for name, age_s in (("old", 4000), ("new", 3000)):
        (folder / name).write_bytes(b"x")
        now_s = folder.stat().st_mtime
        os.utime(folder / name, (now_s - age_s, now_s - age_s))
    async with FileStore(tmp_path / "root") as store:
        await store.put_if_absent("a/b", [b"x"])
    assert files_below(tmp_path / "root") == [".tmp/new", "a/b"]


async def test_closing_leaves_nothing_of_our_own(tmp_path: Path) -> None:
    async with FileStore(tmp_path / "root") as store:
        await store.put_if_absent("a/b", [b"x"])
        await store.store_time_ms()
    assert [path.name for path in (tmp_path / "root" / ".tmp").iterdir()] == []


@pytest.mark.slow
async def test_a_put_races_with_the_removal_of_its_folder(tmp_path: Path, store: FileStore) -> None:
    """Another program tidies empty folders away: a put lands whole, or says that it is not sure,
    and then a second try lands.
    """
    stop = threading.Event()

    def tidy() -> None:
        while not stop.is_set():
            shutil.rmtree(tmp_path / "root" / "a", ignore_errors=True)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for i in range(100):
            try:
                await store.put_if_absent(f"a/b/c/{i}", [b"x"])
            except StoreUncertain:
                pass
    finally:
        stop.set()
        thread.join()
    try:
        await store.put_if_absent("a/b/c/last", [b"x"])
    except StoreUncertain:  # the folder was removed after the last put of the race
        await store.put_if_absent("a/b/c/last", [b"x"])
    assert await store.get("a/b/c/last") == b"x"


async def test_folders_of_topics_go_with_their_last_object_and_others_stay(tmp_path: Path, store: FileStore) -> None:
    gone = [
        "parquet/topic=gone/partition=0/a",
        "parquet/topic=gone/partition=1/b",
        "keyed/_7/partition=0/files/c",
        "sinks/q/staged/d",
    ]
    kept = ["parquet/topic=kept/partition=0/e", "ledgers/0001/compactions/f"]
    for key in (*gone, *kept):
        await store.put_if_absent(key, [b"x"])
    await store.open_fence("fence")
    strange = tmp_path / "root" / "parquet" / "topic=gone" / "partition=1" / "_SUCCESS"
    strange.write_bytes(b"of another program")
    await store.delete([*gone, "ledgers/0001/compactions/f", "parquet/topic=never/partition=0/was"])

    def folders() -> set[str]:
        return {str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_dir()}

    left = {"parquet/topic=gone", "parquet/topic=gone/partition=1"}
    around = {
        ".tmp",
        "parquet",
        "parquet/_tmp",
        "parquet/_tmp/fence",
        "keyed",
        "sinks",
        "ledgers",
        "ledgers/0001",
        "ledgers/0001/compactions",
    }
    assert folders() == {"parquet/topic=kept", "parquet/topic=kept/partition=0", *left, *around}
    strange.unlink()
    await store.delete(["parquet/topic=gone/partition=1/b"])
    assert folders().isdisjoint(left), "the next deletion there takes them"


async def test_no_put_fails_because_its_folder_goes(tmp_path: Path, sources: Sources) -> None:
    """Each store believes to know the folder, which goes with each object that the other deletes in
    it.
    """

    async def put_and_delete(store: FileStore, name: str) -> None:
        for i in range(100):
            key = f"parquet/topic=t/partition=0/{name}-{i}"
            await store.put_if_absent(key, [b"x"])
            assert await store.get(key) == b"x"
            await store.delete([key])

    async with FileStore(tmp_path / "root") as one, FileStore(tmp_path / "root") as other, asyncio.TaskGroup() as group:
        for name, store in (("a", one), ("b", one), ("c", other), ("d", other)):
            group.create_task(put_and_delete(store, name))
    assert [path.name for path in (tmp_path / "root" / "parquet").iterdir()] == []


async def test_fenced_puts_race_with_the_close_of_their_fence(store: FileStore) -> None:
    """Each put either landed before the fence was closed, and is seen right after, or is refused;
    none lands later.
    """
    for i in range(15):
        fence, names = f"fence-{i}", [f"f{i}/{j}" for j in range(8)]
        await store.open_fence(fence)
        puts = await store.fenced_puts(fence, names, 60_000)
        tasks = [asyncio.create_task(puts.put_if_absent(name, [b"x" * 1000])) for name in names]
        await asyncio.sleep(0.0005 * (i % 5))
        await store.close_fence(fence)
        landed = [info.key async for info in store.list(f"f{i}/")]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [info.key async for info in store.list(f"f{i}/")] == landed
        for name, result in zip(names, results, strict=True):
            assert (result is None) == (name in landed), result
            assert result is None or isinstance(result, (FenceClosed, StoreUncertain))


async def test_a_fence_that_is_made_again_does_not_revive_what_was_on_its_way(tmp_path: Path, store: FileStore) -> None:
    await store.open_fence("f")
    puts = await store.fenced_puts("f", ["a/b"], 60_000)
    (tmp_path / "root/parquet/_tmp/f/half").write_bytes(b"left by a killed task")
    await store.close_fence("f")
    await store.close_fence("f")
    with pytest.raises(FenceClosed):
        await puts.put_if_absent("a/b", [b"x"])
    assert await keys_of(store) == []


async def test_a_foreign_file_is_listed_and_kept(tmp_path: Path, store: FileStore) -> None:
    await store.put_if_absent("a/b", [b"x"])
    (tmp_path / "root" / "a" / "ä b.txt").write_bytes(b"of another program")
    assert await keys_of(store) == ["a/b", "a/ä b.txt"]


async def test_two_stores_of_one_folder_agree_on_who_created_it(tmp_path: Path, store: FileStore) -> None:
    async with FileStore(tmp_path / "root") as other:
        await other.put_if_absent("a/b", [b"theirs"])
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("a/b", [b"ours"])
        assert files_below(tmp_path / "root") == ["a/b"]
