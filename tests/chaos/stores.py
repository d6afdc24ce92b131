"""The store of the brokers: a folder; a real MinIO that is killed, stopped, paused and started again on the
same data; or an emulator of Azure's or Google's store, which is paused only, because it forgets what it held when it
is killed.

Each process reaches a server through its own line, a proxy; `direct_url` bypasses all lines, for the
judge. A folder has no lines and no server, so their troubles are not drawn for it.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pyarrow import fs

from infra.azurite import ACCOUNT, Azurite
from infra.emulator import answers
from infra.fake_gcs import FakeGcs, write_service_account
from infra.minio import START_SECONDS_MAX, Minio
from infra.ports import free_port
from tests.chaos.children import Child, Children
from tests.chaos.schedule import ALL_KINDS, OF_A_REMOTE_STORE, Kind
from tests.servers.clouds import create_container, create_gcs_bucket, gcs_xml_command
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


class ServedStore(ABC):
    """What stores of a server have in common: a line for each process."""

    kinds = ALL_KINDS

    def __init__(self, folder: Path, children: Children, stack: AsyncExitStack, seed: int) -> None:
        """`stack` closes the lines."""
        self._folder, self._children, self._stack, self._seed = folder, children, stack, seed
        self._endpoint = f"http://127.0.0.1:{free_port()}"
        """Past all lines."""
        self.server: Child | None = None
        self.lines: dict[str, CuttingProxy] = {}
        self.direct_url = self._url(self._endpoint)

    @abstractmethod
    def _url(self, endpoint: str) -> str: ...

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    def parquet_folder(self) -> tuple[fs.FileSystem, str]: ...

    async def url(self, process: str) -> str:
        if process not in self.lines:
            number = self._seed * 100 + len(self.lines)
            self.lines[process] = await self._stack.enter_async_context(cutting_proxy(self._endpoint, number, NEVER))
        return self._url(self.lines[process].endpoint)

    async def _up(self, child: Child, is_ready: Callable[[], bool]) -> None:
        """Wait until it answers. Raises RuntimeError, TimeoutError."""
        async with asyncio.timeout(START_SECONDS_MAX):
            while not await asyncio.to_thread(is_ready):
                if child.code is not None:
                    raise RuntimeError(f"{child.name} did not start:\n{child.text()}")
                await asyncio.sleep(0.1)


class MinioStore(ServedStore):
    def __init__(self, folder: Path, children: Children, stack: AsyncExitStack, seed: int) -> None:
        super().__init__(folder, children, stack, seed)
        self._minio = Minio(self._endpoint)
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

    def _url(self, endpoint: str) -> str:
        return f"s3://{BUCKET}/root?endpoint={endpoint}&region=us-east-1"

    async def start(self) -> None:
        is_new = self.server is None
        self.server = self._children.spawn(
            "minio", self._minio.command(self._folder / "minio"), self._minio.environment()
        )
        await self._up(self.server, self._minio.is_ready)
        if is_new:
            await asyncio.to_thread(create_bucket, self._minio, BUCKET)

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


FORGETS = frozenset({Kind.SERVER_KILL, Kind.SERVER_STOP})
"""Troubles after which an emulator that keeps its objects in memory is empty."""


class AzureStore(ServedStore):
    kinds = ALL_KINDS - FORGETS

    def __init__(self, folder: Path, children: Children, stack: AsyncExitStack, seed: int) -> None:
        super().__init__(folder, children, stack, seed)
        self._azurite = Azurite(self._endpoint)
        os.environ.pop("AZURE_STORAGE_CONNECTION_STRING", None)
        os.environ.update(self._azurite.variables())

    def _url(self, endpoint: str) -> str:
        return f"az://{BUCKET}/root?account={ACCOUNT}&endpoint={endpoint}"

    async def start(self) -> None:
        command = self._azurite.command(self._folder / "azurite")
        self.server = self._children.spawn("azurite", command, self._azurite.environment())
        await self._up(self.server, self._azurite.is_ready)
        await asyncio.to_thread(create_container, self._azurite, BUCKET)

    def parquet_folder(self) -> tuple[fs.FileSystem, str]:
        authority = urlsplit(self._endpoint).netloc
        return (
            fs.AzureFileSystem(
                self._azurite.account,
                account_key=self._azurite.key,
                blob_storage_authority=authority,
                dfs_storage_authority=authority,
                blob_storage_scheme="http",
                dfs_storage_scheme="http",
            ),
            f"{BUCKET}/root/parquet",
        )


class GcsStore(ServedStore):
    """`server` is the emulator. Lines lead to its front, see `tests.servers.gcs_xml`."""

    kinds = ALL_KINDS - FORGETS

    def __init__(self, folder: Path, children: Children, stack: AsyncExitStack, seed: int) -> None:
        super().__init__(folder, children, stack, seed)
        self._gcs = FakeGcs(f"http://127.0.0.1:{free_port()}")
        self._account = folder / "account.json"
        write_service_account(self._account, f"{self._endpoint}/token")
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(self._account)

    def _url(self, endpoint: str) -> str:
        return f"gs://{BUCKET}/root?endpoint={endpoint}"

    async def start(self) -> None:
        self.server = self._children.spawn("fake-gcs-server", self._gcs.command())
        await self._up(self.server, self._gcs.is_ready)
        await asyncio.to_thread(create_gcs_bucket, self._gcs, BUCKET)
        port = urlsplit(self._endpoint).port or 0
        front = self._children.spawn("gcs-xml", gcs_xml_command(self._gcs.endpoint, port, self._account))
        await self._up(front, partial(answers, self._endpoint))

    def parquet_folder(self) -> tuple[fs.FileSystem, str]:
        return (
            fs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=urlsplit(self._gcs.endpoint).netloc),
            f"{BUCKET}/root/parquet",
        )


STORES: dict[str, type[ServedStore]] = {"minio": MinioStore, "azure": AzureStore, "gcs": GcsStore}
"""Stores of a server, as `make chaos STORE=…` names them."""
