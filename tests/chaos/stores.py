"""The store of the brokers: a folder, or a real MinIO that is killed, stopped, paused and started
again on the same data.

Each process reaches MinIO through its own line, a proxy; `direct_url` bypasses all lines, for the
judge. A folder has no lines and no server, so their troubles are not drawn for it.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pyarrow import fs

from infra.minio import START_SECONDS_MAX, Minio
from infra.ports import free_port
from tests.chaos.children import Child, Children
from tests.chaos.schedule import ALL_KINDS, OF_A_REMOTE_STORE, Kind
from tests.servers.cutting_proxy import NEVER, CuttingProxy, cutting_proxy
from tests.stores.backends import create_bucket

BUCKET = "chaos"


class ChaosStore(Protocol):
    kinds: frozenset[Kind]
    """Troubles that it can have."""
    direct_url: str
    server: Child | None
    lines: dict[str, CuttingProxy]
    """By the name of the process that goes through it."""

    async def start(self) -> None:
        """Also again, after its server was killed."""
        ...

    async def url(self, process: str) -> str:
        """The root URL for a process."""
        ...

    def parquet_folder(self) -> tuple[fs.FileSystem, str]:
        """As plain readers reach `parquet/`, past all lines."""
        ...


class FolderStore:
    kinds = ALL_KINDS - OF_A_REMOTE_STORE

    def __init__(self, folder: Path) -> None:
        self._root = folder / "root"
        self.direct_url = self._root.as_uri()
        self.server: Child | None = None
        self.lines: dict[str, CuttingProxy] = {}

    async def start(self) -> None:
        self._root.mkdir(exist_ok=True)

    async def url(self, process: str) -> str:
        return self.direct_url

    def parquet_folder(self) -> tuple[fs.FileSystem, str]:
        return fs.LocalFileSystem(), str(self._root / "parquet")


class MinioStore:
    kinds = ALL_KINDS

    def __init__(self, folder: Path, children: Children, stack: AsyncExitStack, seed: int) -> None:
        """`stack` closes the lines."""
        self._minio = Minio(f"http://127.0.0.1:{free_port()}")
        self._folder, self._children, self._stack, self._seed = folder, children, stack, seed
        self.server: Child | None = None
        self.lines: dict[str, CuttingProxy] = {}
        os.environ.update(AWS_ACCESS_KEY_ID=self._minio.access_key, AWS_SECRET_ACCESS_KEY=self._minio.secret_key)
        for name in (
            "AWS_PROFILE",
            "AWS_SESSION_TOKEN",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
        ):
            os.environ.pop(name, None)
        self.direct_url = self._url(self._minio.endpoint)

    def _url(self, endpoint: str) -> str:
        return f"s3://{BUCKET}/root?endpoint={endpoint}&region=us-east-1"

    async def start(self) -> None:
        is_new = self.server is None
        self.server = self._children.spawn(
            "minio", self._minio.command(self._folder / "minio"), self._minio.environment()
        )
        async with asyncio.timeout(START_SECONDS_MAX):
            while not await asyncio.to_thread(self._minio.is_ready):
                if self.server.code is not None:
                    raise RuntimeError(f"MinIO did not start:\n{self.server.text()}")
                await asyncio.sleep(0.1)
        if is_new:
            await asyncio.to_thread(create_bucket, self._minio, BUCKET)

    async def url(self, process: str) -> str:
        if process not in self.lines:
            number = self._seed * 100 + len(self.lines)
            self.lines[process] = await self._stack.enter_async_context(
                cutting_proxy(self._minio.endpoint, number, NEVER)
            )
        return self._url(self.lines[process].endpoint)

    def parquet_folder(self) -> tuple[fs.FileSystem, str]:
        return (
            fs.S3FileSystem(
                access_key=self._minio.access_key,
                secret_key=self._minio.secret_key,
                endpoint_override=urlsplit(self._minio.endpoint).netloc,
                scheme="http",
                region="us-east-1",
                connect_timeout=3,
                request_timeout=10,
            ),
            f"{BUCKET}/root/parquet",
        )
