"""From a root URL to its store: the only place that knows which backends there are.

file:///folder        a local folder, or one on a file system that several machines share
memory://name         in this process only; the same name is the same store
s3://bucket/prefix    see `ledger.object_store.s3`
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ledger.object_store.contract import ObjectStore
from ledger.object_store.file import FileStore
from ledger.object_store.memory import MemoryStore
from ledgermq.errors import InvalidConfig
from ledgermq.sources import Sources


async def open_store(url: str, *, sources: Sources) -> ObjectStore:
    """The store at root `url`. Raises InvalidConfig."""
    parts = _split(url)
    if parts.scheme == "file":
        return FileStore(_folder(url, parts), sources)
    if parts.scheme == "memory":
        return MemoryStore.named(parts.netloc + parts.path)
    raise InvalidConfig(f"root URL {url!r}: the scheme has to be file, s3 or memory")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"root URL {url!r}: {error}") from error


def _folder(url: str, parts: SplitResult) -> Path:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InvalidConfig(f"root URL {url!r}: a file URL needs an absolute path: file:///folder")
    if parts.query or parts.fragment:
        raise InvalidConfig(f"root URL {url!r}: a file URL has neither '?' nor '#'; write %3F and %23 in names")
    return Path(unquote(parts.path))
