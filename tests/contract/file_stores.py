"""A file store in a folder of a test, and what lies there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ledgermq_ledger.object_store.file.store import FileStore


async def file_store(tmp_path: Path) -> AsyncIterator[FileStore]:
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
