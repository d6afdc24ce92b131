"""The file store on disks that are full, read-only or gone, and beside things that are no files."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import pytest

from ledgermq.errors import DataDamaged, InvalidRequest, StoreFull, StoreUnusable
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectMissing
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.probe import probe_store
from tests.contract.file_stores import file_store, files_below, keys_of, run_python
from tests.servers.small_disk import small_disk

NOBODY = 65534
store = pytest.fixture(file_store)


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
from ledgermq_ledger.object_store.file.store import FileStore
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


async def test_a_foreign_file_is_listed_and_kept(tmp_path: Path, store: FileStore) -> None:
    await store.put_if_absent("a/b", [b"x"])
    (tmp_path / "root" / "a" / "ä b.txt").write_bytes(b"of another program")
    assert await keys_of(store) == ["a/b", "a/ä b.txt"]
