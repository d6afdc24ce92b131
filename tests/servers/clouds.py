"""Emulators of clouds' stores with a bucket each, and credentials by each cloud's own chain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from infra import azurite
from ledgermq_ledger.object_store.contract import ObjectStore

BUCKET = "ledgermq-test"


@dataclass(frozen=True)
class Cloud:
    """`url(prefix)`: that of a root. `variables`: the environment that opens it."""

    scheme: str
    query: str
    variables: dict[str, str]

    def url(self, prefix: str) -> str:
        return f"{self.scheme}://{BUCKET}/{prefix}?{self.query}"


@contextmanager
def azure() -> Iterator[Cloud]:
    """Run Azurite."""
    from azure.storage.blob import BlobServiceClient

    with azurite.running() as server:
        with BlobServiceClient(f"{server.endpoint}/{server.account}", credential=server.key) as client:
            client.create_container(BUCKET)
        yield Cloud("az", f"account={server.account}&endpoint={server.endpoint}", server.variables())


async def open_cloud(url: str) -> ObjectStore:
    from ledgermq_ledger.object_store.clouds.store import open_azure

    return await open_azure(url)
