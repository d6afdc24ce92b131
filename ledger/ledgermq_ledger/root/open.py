"""Open the store of a root URL: the only module that imports all backends.

file:///folder        a local folder, or one on a file system that several machines share
memory://name         in this process only; the same name is the same store
s3://bucket/prefix    see `ledgermq_ledger.object_store.s3.store`
az://container/prefix, gs://bucket/prefix see `ledgermq_ledger.object_store.clouds.store`
hdfs://host:port/dir  or hdfs://nameservice/dir, see `ledgermq_ledger.object_store.hdfs.store`
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore
from ledgermq_ledger.object_store.wrappers.metered import MeteredStore, StoreMeter
from ledgermq_ledger.object_store.wrappers.resilient import IN_FLIGHT_MAX, ResilientStore
from ledgermq_ledger.root.copies import CopyingStore

_SPELLED = {
    "s3a": "s3://",
    "s3n": "s3://",
    "gcs": "gs://",
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "az://container/prefix?account=name"),
}
"""How a root is written, by other schemes of the same stores."""


async def open_store(
    url: str,
    *,
    sources: Sources,
    in_flight_max: int = IN_FLIGHT_MAX,
    meter: StoreMeter | None = None,
    mends: bool = False,
) -> ObjectStore:
    """Return the store at root `url`; nothing is read or written yet, `probe_store` does that.
    `meter` is notified of each request, repeated ones too.

    `mends`: restore damaged objects that have a sound second copy.

    Raises InvalidConfig, Unauthorized (no credentials at all).
    """
    backend = await _open_backend(url, sources)
    store = backend if meter is None else MeteredStore(backend, meter)
    if isinstance(backend, MemoryStore):
        return store
    return CopyingStore(ResilientStore(store, sources, in_flight_max), mends=mends, meter=meter)


async def _open_backend(url: str, sources: Sources) -> ObjectStore:
    parts = _split(url)
    if parts.scheme == "memory":
        return MemoryStore.named(parts.netloc + parts.path)
    if parts.scheme == "file":
        return FileStore(_folder(url, parts), sources)
    if parts.scheme == "s3":
        return await _open_s3(url)
    if parts.scheme == "hdfs":
        return _open_hdfs(url, sources)
    if parts.scheme == "az":
        return await _open_azure(url)
    if parts.scheme == "gs":
        return await _open_gcs(url)
    if parts.scheme in _SPELLED:
        raise InvalidConfig(
            f"root URL {url!r}: write it with {_SPELLED[parts.scheme]}; {parts.scheme}:// is for Spark's own readers"
        )
    raise InvalidConfig(
        f"root URL {url!r}: use file:///folder, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix,"
        " hdfs://host:port/folder or memory://name"
    )


async def _open_s3(url: str) -> ObjectStore:
    try:
        from ledgermq_ledger.object_store.s3.store import open_s3
    except ImportError as error:
        advice = what_to_do(error, 'pip install "ledgermq[s3]"')
        raise InvalidConfig(f"root URL {url!r}: S3 needs more packages: {advice}") from error
    return await open_s3(url)


async def _open_azure(url: str) -> ObjectStore:
    try:
        from ledgermq_ledger.object_store.clouds.store import open_azure

        return await open_azure(url)
    except ImportError as error:
        advice = what_to_do(error, 'pip install "ledgermq[azure]"')
        raise InvalidConfig(f"root URL {url!r}: Azure needs more packages: {advice}") from error


async def _open_gcs(url: str) -> ObjectStore:
    try:
        from ledgermq_ledger.object_store.clouds.store import open_gcs

        return await open_gcs(url)
    except ImportError as error:
        advice = what_to_do(error, 'pip install "ledgermq[gcs]"')
        raise InvalidConfig(f"root URL {url!r}: Google Cloud Storage needs more packages: {advice}") from error


def _open_hdfs(url: str, sources: Sources) -> ObjectStore:
    try:
        from ledgermq_ledger.object_store.hdfs.store import open_hdfs
    except ImportError as error:
        advice = what_to_do(error, 'pip install "ledgermq[hdfs]"')
        raise InvalidConfig(f"root URL {url!r}: HDFS needs one more package: {advice}") from error
    return open_hdfs(url, sources)


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
    path = unquote(parts.path)
    if "\0" in path:
        raise InvalidConfig(f"root URL {url!r}: a file name cannot contain a NUL character")
    return Path(path)
