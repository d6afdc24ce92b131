"""Emulators of clouds' stores with a bucket each, and credentials by each cloud's own chain."""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra import azurite
from infra.azurite import Azurite
from infra.emulator import served
from infra.fake_gcs import FakeGcs, write_service_account
from infra.ports import free_port
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


def create_container(server: Azurite, name: str) -> None:
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient(f"{server.endpoint}/{server.account}", credential=server.key) as client:
        client.create_container(name)


def create_gcs_bucket(server: FakeGcs, name: str) -> None:
    body = json.dumps({"name": name}).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/storage/v1/b", body, headers), timeout=10):
        pass


def gcs_xml_command(upstream: str, port: int, account: Path) -> list[str]:
    """Return the command of the front of fake-gcs-server, see `tests.servers.gcs_xml`."""
    return [sys.executable, "-m", "tests.servers.gcs_xml", upstream, str(port), str(account)]


@contextmanager
def azure() -> Iterator[Cloud]:
    """Run Azurite."""
    with azurite.running() as server:
        create_container(server, BUCKET)
        yield Cloud("az", f"account={server.account}&endpoint={server.endpoint}", server.variables())


@contextmanager
def gcs() -> Iterator[Cloud]:
    """Run fake-gcs-server and its front."""
    server, port = FakeGcs(f"http://127.0.0.1:{free_port()}"), free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="ledgermq-gcs-") as name:
        folder = Path(name)
        account = folder / "account.json"
        write_service_account(account, f"{endpoint}/token")
        front = gcs_xml_command(server.endpoint, port, account)
        with (
            served("fake-gcs-server", server.command(), {}, server.endpoint, folder),
            served("gcs-xml", front, {}, endpoint, folder),
        ):
            create_gcs_bucket(server, BUCKET)
            yield Cloud("gs", f"endpoint={endpoint}", {"GOOGLE_APPLICATION_CREDENTIALS": str(account)})


async def open_cloud(url: str) -> ObjectStore:
    from ledgermq_ledger.object_store.clouds.store import open_azure, open_gcs

    return await (open_gcs(url) if url.startswith("gs:") else open_azure(url))
