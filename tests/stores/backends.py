"""Stores for tests: `async with file_store(tmp_path) as store:`.

Each is empty, and closed at the end.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from infra.minio import Minio
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.file.store import FileStore
from ledgermq_ledger.object_store.memory import MemoryStore


def seeded_sources(seed: int = 0) -> Sources:
    """Seeded randomness and ids, the real clock.

    In virtual time take `tests.virtual_time.virtual_sources`.
    """
    return Sources(random=random.Random(seed))


@asynccontextmanager
async def memory_store(sources: Sources | None = None) -> AsyncIterator[ObjectStore]:
    async with MemoryStore("test", sources or seeded_sources()) as store:
        yield store


@asynccontextmanager
async def file_store(folder: Path, sources: Sources | None = None) -> AsyncIterator[ObjectStore]:
    """`folder` need not exist yet.

    Unseeded ids by default: several stores of one folder must not draw the same names.
    """
    async with FileStore(folder, sources) as store:
        yield store


@asynccontextmanager
async def s3_store(url: str) -> AsyncIterator[ObjectStore]:
    """`url`: the fixture `minio_root` (real) or `moto_root`; these set the credentials too."""
    from ledgermq_ledger.object_store.s3.store import open_s3

    async with await open_s3(url) as store:
        yield store


def create_bucket(server: Minio, name: str) -> None:
    import botocore.session

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )
    client.create_bucket(Bucket=name)
    client.close()
