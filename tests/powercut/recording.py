"""Writes down what a run does to its disk: every change and fsync below a folder, in the order in
which the system did them.

Patches the few functions of `os` by which the file store changes anything (pathlib uses the same).
Each call and its entry in the log are one step, so the log is an order in which things really
happened. A thread may also be killed at a step: it does nothing any more.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.powercut.disk_model import DiskModel, File, Node


@dataclass(frozen=True)
class Step:
    """`what` was done to `path`, below the recording's top; calling it plays that to a model."""

    what: str
    path: str
    play: Callable[[DiskModel], None]

    def __call__(self, model: DiskModel) -> None:
        self.play(model)

    @property
    def kind(self) -> tuple[str, str]:
        """Alike for paths that differ in their numbers only."""
        return self.what, re.sub(r"[0-9a-f]{8,}|\d+", "N", self.path)


class Killed(BaseException):
    """The process of this thread has ended."""


class Recording:
    """`log`: changes of a disk, to be played to a model, and whatever else `note` adds."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.log: list[Step | Any] = []
        self.kill_at: Callable[[str, Path], bool] = lambda what, path: False
        self._lock = threading.RLock()
        self._files: dict[int, Path] = {}
        self._dead: set[threading.Thread] = set()

    def add(self, what: str, path: Path, play: Callable[[DiskModel], None]) -> None:
        self.log.append(Step(what, path.relative_to(self.top).as_posix(), play))

    def note(self, what: Any) -> None:
        with self._lock:
            self.log.append(what)

    def inside(self, path: Any) -> Path | None:
        if not isinstance(path, str | os.PathLike):
            return None
        found = Path(os.fspath(path))  # type: ignore[arg-type]
        return found if found.is_absolute() and found.is_relative_to(self.top) else None

    @contextmanager
    def step(self, what: str, path: Path) -> Iterator[None]:
        with self._lock:
            thread = threading.current_thread()  # its number may be given to another
            if thread in self._dead or self.kill_at(what, path):
                self._dead.add(thread)
                raise Killed(what, path)
            yield

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real = {
            name: getattr(os, name)
            for name in ("open", "close", "writev", "fsync", "link", "replace", "unlink", "mkdir", "rmdir")
        }
        self._patch_files(patch, real)
        self._patch_names(patch, real)

    def _patch_files(self, patch: pytest.MonkeyPatch, real: dict[str, Callable[..., Any]]) -> None:
        nodes: dict[int, Node] = {}

        def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            inside = self.inside(path)
            if inside is None:
                return real["open"](path, flags, *args, **kwargs)
            with self.step("open", inside):
                is_new = bool(flags & os.O_CREAT) and not inside.exists()
                descriptor = real["open"](path, flags, *args, **kwargs)
                self._files[descriptor] = inside
                nodes.pop(descriptor, None)
                if is_new:
                    self.add("create", inside, lambda model: (model.create(inside), None)[1])
                return descriptor

        def close(descriptor: int) -> None:
            with self._lock:
                self._files.pop(descriptor, None)
                real["close"](descriptor)

        def writev(descriptor: int, buffers: Any) -> int:
            path = self._files.get(descriptor)
            if path is None:
                return real["writev"](descriptor, buffers)
            with self.step("write", path):
                count = real["writev"](descriptor, buffers)
                data = b"".join(buffers)[:count]
                self.add("write", path, lambda model: _written(model, path, data))
                return count

        def fsync(descriptor: int) -> None:
            path = self._files.get(descriptor)
            if path is not None:  # the true one costs time and proves nothing here
                with self.step("fsync", path):
                    self.add("fsync", path, lambda model: _synced(model, path))

        for function in (open_, close, writev, fsync):
            patch.setattr(os, function.__name__.rstrip("_"), function)

    def _patch_names(self, patch: pytest.MonkeyPatch, real: dict[str, Callable[..., Any]]) -> None:
        def recorded(name: str, play: Callable[..., Callable[[DiskModel], None]]) -> None:
            def call(*args: Any, **kwargs: Any) -> None:
                paths = [self.inside(arg) for arg in args if isinstance(arg, str | os.PathLike)]
                if not paths or None in paths:
                    return real[name](*args, **kwargs)
                with self.step(name, paths[-1]):  # type: ignore[arg-type]
                    real[name](*args, **kwargs)
                    self.add(name, paths[-1], play(*paths))
                return None

            patch.setattr(os, name, call)

        recorded("link", lambda source, target: lambda model: model.link(source, target))
        recorded("replace", lambda source, target: lambda model: model.rename(source, target))
        recorded("unlink", lambda path: lambda model: model.remove(path))
        recorded("rmdir", lambda path: lambda model: model.remove(path))
        recorded("mkdir", lambda path: lambda model: model.mkdir(path))


def _written(model: DiskModel, path: Path, data: bytes) -> None:
    file = model.node(path)
    assert isinstance(file, File)
    file.data += data


def _synced(model: DiskModel, path: Path) -> None:
    try:
        model.sync(model.node(path))
    except KeyError:
        pass  # removed while it was open: no process will ever look for it
