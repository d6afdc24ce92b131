"""Run durable steps on a local file system: whole files that appear at once, folders that survive a
power cut, the errors of both.

    create    temp file, writev, fsync | link (fails if the name exists) | fsync folder | unlink temp
    replace   temp file, writev, fsync | rename                          | fsync folder
    read      open | fsync folder, if the file has two names | read

Invariants: a name never shows a part of its content; a folder's entry is fsynced before anything in
it counts as durable; an fsync of a folder that failed is never believed again (the kernel may
forget the error): the disk is then broken for good. Folders in which nothing is left are removed
where they come and go (`passing`); a put whose folder has vanished makes it again. There a folder
is pinned by the file in it, not by having been made: so the put fsyncs the folders above after the
link, before it counts. Removing a temporary file can only make its put fail. A
file that still has its temporary name may not be durable yet (its writer is between two steps, or
was killed there), so a reader makes it so: others build on what a reader has seen. Closing a fence
takes the temporary names away, so what was put under one is made durable (`make_durable`) before
anything is built on it. Blocking: runs in threads. Knows no keys, fences or asyncio.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from ledgermq.errors import DataDamaged, InvalidRequest, StoreFull, StoreUnusable
from ledgermq_ledger.object_store.contract import AlreadyExists, Buffer, ObjectMissing, StoreUncertain

_FULL = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the disk quota is used up",
}
_UNUSABLE = {
    errno.EFBIG: "the limit on the size of a file is reached",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "the operation is not permitted",
    errno.EMLINK: "the file system allows no more links",
    errno.EOPNOTSUPP: "the file system has no hard links",
}
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
FOLDER_ATTEMPTS_MAX = 100
"""Tries to make a folder for a put while other processes remove it; each of them needs a file to
delete in it.
"""
_BUFFERS_A_WRITE_MAX = 1024
"""IOV_MAX of Linux and macOS."""


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Raise OSError as the contract's errors; a missing file is ObjectMissing, an unexpected error
    StoreUncertain.
    """
    try:
        yield
    except FileExistsError as e:
        raise AlreadyExists(f"object {what} exists", object_key=what) from e
    except _NotAFile as e:
        raise DataDamaged(
            f"{what}: the name belongs to a pipe, a socket or a device, not to a file: remove it", object_key=what
        ) from e
    except OSError as e:
        if e.errno in _MISSING:
            raise ObjectMissing(f"no object {what}", object_key=what) from e
        if e.errno == errno.ENAMETOOLONG:
            raise InvalidRequest(f"{what}: the name is too long for this file system") from e
        if e.errno in _FULL:
            raise StoreFull(f"the file store is full: {_FULL[e.errno]} ({what})", object_key=what) from e
        if e.errno in _UNUSABLE:
            raise StoreUnusable(f"cannot use the file store: {_UNUSABLE[e.errno]} ({what})", object_key=what) from e
        raise StoreUncertain(f"{what}: {e.strerror or e}", object_key=what) from e


def write_temp(path: Path, buffers: Sequence[Buffer], check: Callable[[], None] | None = None) -> None:
    """Write a new, whole, fsynced file; on failure none, or one that does no harm.

    `check`: called at the end, may refuse it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, buffers)
        os.fsync(descriptor)
        if check is not None:
            check()
    except BaseException:
        with suppress(OSError):
            remove(path)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, buffers: Sequence[Buffer]) -> None:
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first = 0
    while first < len(views):
        written = os.writev(descriptor, views[first : first + _BUFFERS_A_WRITE_MAX])
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]


def remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.unlink()


def read(path: str, root: Path, last: int | None = None) -> bytes:
    """Return the whole file, or its `last` bytes."""
    with _opened(path, root) as (descriptor, size):
        parts, begin = [], 0 if last is None else max(0, size - last)
        while begin < size and (part := os.pread(descriptor, size - begin, begin)):
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def read_range(path: str, root: Path, start: int, length: int) -> memoryview:
    """Return a range of the file in Arrow's memory, which is reused; the memory of large `bytes`
    comes from the kernel each time, page by page.
    """
    with _opened(path, root) as (descriptor, size):
        found = memoryview(pa.allocate_buffer(max(0, min(length, size - start)))).cast("B")
        begin = 0
        while begin < len(found) and (count := os.preadv(descriptor, [found[begin:]], start + begin)):
            begin += count
        return found[:begin]


@contextmanager
def _opened(path: str, root: Path) -> Iterator[tuple[int, int]]:
    """Open a file; yield its descriptor and size. What is no file is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _NotAFile(errno.EINVAL, "a socket, or a device that is not there", path) from error
        raise
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder", path)
        if not stat.S_ISREG(found.st_mode):
            raise _NotAFile(errno.EINVAL, "not a file", path)
        if found.st_nlink > 1:
            for folder in Path(path).parents:
                fsync_folder(folder)
                if folder == root:
                    break
        yield descriptor, found.st_size
    finally:
        os.close(descriptor)


class _NotAFile(OSError):
    """A pipe, a socket or a device has the name."""


class FsyncFailed(OSError):
    """The disk did not accept the written data."""


def fsync_folder(folder: Path) -> None:
    """Fsync a folder. Raises FsyncFailed."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some network file systems have no fsync of folders: there link is durable by itself. A
        # read-only one holds only durable files.
        if e.errno not in (errno.EINVAL, errno.EROFS):
            raise FsyncFailed(e.errno, e.strerror) from e
    finally:
        os.close(descriptor)


class Disk:
    """One root folder. Call `prepare` before the first write; readers need not, so that a read-only
    root can be read.

    `passing`: folders below which empty folders are removed; they themselves stay.
    """

    def __init__(self, root: Path, passing: Collection[Path] = ()) -> None:
        self.root = root
        self._passing = frozenset(passing)
        self._durable: set[Path] = set()
        self._broken: str | None = None

    def prepare(self, *folders: Path) -> None:
        """Make the root and `folders` below it. The root is made only here: if it vanishes later,
        that is an error, not a new begin.

        Raises StoreUnusable if a folder cannot be made, or a file has its name.
        """
        missing = [p for p in (self.root, *self.root.parents) if not p.exists()]
        for path in reversed(missing):
            try:
                path.mkdir(exist_ok=True)
            except (FileNotFoundError, NotADirectoryError) as e:
                raise StoreUnusable(
                    f"cannot make the folder {path}: {e.strerror}; choose another root", object_key=str(path)
                ) from e
            self._fsync_folder(path.parent)
        if not self.root.is_dir():
            raise StoreUnusable(f"{self.root} is a file; the root has to be a folder", object_key=str(self.root))
        with suppress(PermissionError):  # another process may have made the root and not yet fsynced its parent
            self._fsync_folder(self.root.parent)
        self._durable.add(self.root)
        for folder in folders:
            self.make_folder(folder)

    def check_usable(self) -> None:
        if self._broken:
            raise StoreUnusable(f"cannot use the file store: {self._broken}; check the disk, then restart")

    def make_folder(self, folder: Path) -> None:
        """Make a folder, durable with all its parents on return.

        Each process fsyncs each folder once: the process that made it may not have done so.
        """
        if folder in self._durable:
            return
        self.make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        self._fsync_folder(folder.parent)
        self._durable.add(folder)

    def create(self, temp: Path, path: Path) -> None:
        """Give the whole file `temp` its name `path`, durably. Raises FileExistsError,
        FileNotFoundError if `temp` was removed.

        Once the name exists, the only error is StoreUncertain: other processes may see the file,
        and it may last. A temporary file that cannot be removed does no harm: it marks the file as
        perhaps not durable, and is removed when the store is opened an hour later.
        """
        try:
            try:
                self._link(temp, path)
            except FileExistsError:
                # It may be this put's, linked by a hedged put that has not fsynced yet: what a
                # read-back finds has to be durable.
                self._fsync_landed(path)
                raise
            self._fsync_landed(path)
        finally:
            if not self._broken:
                with suppress(OSError):
                    remove(temp)

    def _fsync_landed(self, path: Path) -> None:
        try:
            self._fsync_folders(path)
        except FileNotFoundError:
            raise  # removed meanwhile; the caller decides whether that was intended
        except (StoreUnusable, OSError) as e:
            what = e.message if isinstance(e, StoreUnusable) else e.strerror or e
            raise StoreUncertain(f"{what}: {path.name} exists, but it may not be durable; retry") from e

    def _link(self, temp: Path, path: Path) -> None:
        """Link a file in its folder, which other processes may remove while it is empty.

        Raises FileExistsError, FileNotFoundError if `temp` was removed.
        """
        for _ in range(FOLDER_ATTEMPTS_MAX):
            try:
                self.make_folder(path.parent)
                os.link(temp, path)
                return
            except FileNotFoundError:
                self._durable = {self.root}
                if not temp.exists():
                    raise
        raise FileNotFoundError(
            errno.ENOENT, "another process removes its folder each time that it is made", str(path.parent)
        )

    def replace(self, temp: Path, path: Path) -> None:
        try:
            self.make_folder(path.parent)
            os.replace(temp, path)
        except FileNotFoundError:
            self._durable = {self.root}
            raise
        finally:
            with suppress(OSError):
                remove(temp)
        self._fsync_landed(path)

    def make_durable(self, paths: Sequence[Path]) -> None:
        """Make the names of files durable that other processes have linked.

        A missing temporary name proves nothing if its fence may have been closed.
        """
        for folder in dict.fromkeys(
            above for path in paths for above in path.parents if above.is_relative_to(self.root)
        ):
            self._fsync_folder(folder)

    def remove_all(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with suppress(NotADirectoryError):
                remove(path)
        for folder in dict.fromkeys(path.parent for path in paths):
            with suppress(FileNotFoundError, NotADirectoryError):
                self._fsync_folder(folder)
            self._remove_empty(folder)

    def _remove_empty(self, folder: Path) -> None:
        """Remove an empty folder and the empty ones above it. A folder that cannot be removed
        stays; it does no harm.
        """
        while any(above in self._passing for above in folder.parents):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # another process removed it; the one above may be empty now
            except OSError:
                return
            self._durable.discard(folder)
            folder = folder.parent

    def make_fence(self, folder: Path) -> None:
        """Make a fence, without the cache: another process may have removed the fence and made it
        again.
        """
        self.make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir()
        self._fsync_folder(folder.parent)

    def remove_fence(self, folder: Path) -> bool:
        """Try once to empty and remove the folder. Return False if another process put a file in
        between.

        Files linked from it lose their temporary names, also those that are not durable yet: see
        `make_durable`.
        """
        try:
            for name in os.listdir(folder):
                remove(folder / name)
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError as e:
            if e.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        with suppress(FileNotFoundError):
            self._fsync_folder(folder.parent)
        return True

    def _fsync_folders(self, path: Path) -> None:
        """Fsync the folders of a file that just got its name.

        Other processes may have made removable folders again since `make_folder`.
        """
        folder = path.parent
        self._fsync_folder(folder)
        while any(above in self._passing for above in folder.parents):
            folder = folder.parent
            self._fsync_folder(folder)

    def _fsync_folder(self, folder: Path) -> None:
        try:
            fsync_folder(folder)
        except FsyncFailed as e:
            self._broken = f"fsync of {folder} failed: {e.strerror}"
            raise StoreUnusable(f"cannot use the file store: {self._broken}; check the disk, then restart") from e
