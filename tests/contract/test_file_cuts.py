"""The file store's steps: each may fail, the power or the process may go after any, and nothing is half."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgermq.errors import StoreFull, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store import settle
from ledgermq_ledger.object_store.contract import AlreadyExists, StoreUncertain
from ledgermq_ledger.object_store.file.store import FileStore
from tests.contract.file_stores import file_store, files_below, keys_of

store = pytest.fixture(file_store)


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
from ledgermq_ledger.object_store.file.store import FileStore
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
