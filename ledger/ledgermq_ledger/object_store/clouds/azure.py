"""`AzureVendor`: Azure Blob Storage by azure-storage-blob, and the credentials that obstore sends with.

Credentials: AZURE_STORAGE_CONNECTION_STRING, else the account's key in AZURE_STORAGE_ACCOUNT_KEY or
AZURE_STORAGE_KEY, else azure-identity's own chain (variables AZURE_CLIENT_ID and so on, a workload's or
machine's identity, `az login`). A shared access signature signs nothing, so it does not suffice.

A signed URL is a shared access signature of one blob, by the account's key or by a user delegation key,
which costs a request. Azure does not sign headers: that such a put only creates is said by
`If-None-Match: *`, which this module sends with each.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import requests
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobSasPermissions, BlobServiceClient, generate_blob_sas
from obstore.store import AzureStore

from ledgermq.errors import InvalidConfig, Unauthorized
from ledgermq_ledger.object_store.clouds.connections import connections_to, sender_to
from ledgermq_ledger.object_store.clouds.location import CloudLocation
from ledgermq_ledger.object_store.clouds.signing import CloudSigning, Page
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.obstore_wire import ObstoreWire, Provider
from ledgermq_ledger.object_store.s3.sending import Sender
from ledgermq_ledger.object_store.s3.wire import CONNECT_S_MAX, READERS_MAX, WRITERS_MAX, S3Refused, S3Silent, refused

if TYPE_CHECKING:  # obstore has it for type checkers alone
    from obstore.store import ClientConfig

logging.getLogger("azure").setLevel(logging.WARNING)  # by default it logs each request

SCOPE = "https://storage.azure.com/.default"
NO_CREDENTIALS = (
    "there are no Azure credentials: set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_CONNECTION_STRING, or give this "
    "machine an identity that azure-identity finds (AZURE_CLIENT_ID …, a managed identity, `az login`)"
)
NO_ACCOUNT = (
    "no storage account is named: write az://container/prefix?account=name, or set AZURE_STORAGE_ACCOUNT_NAME or "
    "AZURE_STORAGE_CONNECTION_STRING"
)


class AzureAccount:
    """Which account, and by which credentials. `key` is None where tokens are used."""

    def __init__(self, location: CloudLocation) -> None:
        """Read the environment. Raises InvalidConfig (no account)."""
        given = _connection_string()
        name = (
            location.account
            or given.get("AccountName")
            or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
            or os.environ.get("AZURE_STORAGE_ACCOUNT")
        )
        if not name:
            raise InvalidConfig(f"root URL {location.url!r}: {NO_ACCOUNT}")
        key = os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or os.environ.get("AZURE_STORAGE_KEY")
        if given.get("AccountName") == name:
            key = given.get("AccountKey") or key
        self.name = name
        self.key = key or None
        self._identity = None if self.key else DefaultAzureCredential()
        cloud = f"{given.get('DefaultEndpointsProtocol', 'https')}://{name}.blob." + given.get(
            "EndpointSuffix", "core.windows.net"
        )
        self.endpoint = f"{location.endpoint}/{name}" if location.endpoint else given.get("BlobEndpoint", cloud)

    @property
    def credential(self) -> Any:
        """For azure-storage-blob."""
        return self._identity or self.key

    def for_obstore(self) -> dict[str, Any]:
        """Return the key or a token for obstore, which calls this in its threads."""
        if self._identity is None:
            return {"access_key": self.key, "expires_at": None}
        with azure_errors():
            token = self._identity.get_token(SCOPE)
        return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}


def _session() -> requests.Session:
    """Return connections for all threads at once; by default ten are kept."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=READERS_MAX + WRITERS_MAX))
    return session


def _connection_string() -> dict[str, str]:
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    return dict(part.split("=", 1) for part in text.split(";") if "=" in part)


class AzureVendor:
    create_headers: Mapping[str, str] = {"If-None-Match": "*", "x-ms-blob-type": "BlockBlob"}

    def __init__(self, location: CloudLocation, account: AzureAccount, sender: Sender) -> None:
        self._account = account
        self._service = BlobServiceClient(
            account.endpoint,
            credential=account.credential,
            retry_total=0,
            transport=RequestsTransport(
                session=_session(), connection_timeout=CONNECT_S_MAX, read_timeout=s3_wire.SILENCE_S_MAX
            ),
        )
        self._container = self._service.get_container_client(location.bucket)
        self._lock = threading.Lock()
        self.sender = sender
        self.clock_url = self._container.url

    def list_page(self, prefix: str, start_after: str, token: str | None) -> Page:
        start: dict[str, Any] = {"start_from": start_after} if start_after and not token else {}
        with azure_errors():
            pages = self._container.list_blobs(name_starts_with=prefix, results_per_page=1000, **start).by_page(token)
            blobs = list(next(pages, ()))
        entries = [
            {"Key": blob.name, "Size": blob.size, "ETag": blob.etag, "LastModified": blob.last_modified}
            for blob in blobs
            if blob.name > start_after  # the start itself is among them
        ]
        return entries, pages.continuation_token or None  # type: ignore[attr-defined]

    def delete(self, name: str) -> None:
        with azure_errors():
            self._container.delete_blob(name)

    def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        allowed = BlobSasPermissions(create=True, write=True)  # "create" alone answers 403 where a blob exists
        return self._sign(names, life_s, allowed)

    def sign_get(self, name: str, life_s: int) -> str | None:
        return None if self._account.key is None else self._sign([name], life_s, BlobSasPermissions(read=True))[0]

    def signed_ms(self, url: str, life_ms: int) -> int:
        ends = parse_qs(urlsplit(url).query)["se"][0]
        return int(datetime.fromisoformat(ends).timestamp() * 1000) - life_ms

    def is_over(self, url: str) -> bool:
        return datetime.now(UTC).timestamp() * 1000 > self.signed_ms(url, 0)

    def close(self) -> None:
        self.sender.close()
        self._service.close()

    def _sign(self, names: Sequence[str], life_s: int, allowed: BlobSasPermissions) -> list[str]:
        ends = datetime.now(UTC) + timedelta(seconds=life_s)
        with azure_errors():
            delegated = (
                None
                if self._account.key
                else self._service.get_user_delegation_key(datetime.now(UTC) - timedelta(minutes=15), ends)
            )
            return [
                f"{self._container.url}/{quote(name)}?"
                + generate_blob_sas(
                    self._account.name,
                    self._container.container_name,
                    name,
                    account_key=self._account.key,
                    user_delegation_key=delegated,
                    permission=allowed,
                    expiry=ends,
                )
                for name in names
            ]


class AzureWire(ObstoreWire):
    async def get_suffix(self, name: str, length: int) -> bytes:
        """Read the end of an object in two requests: Azure has no ranges from the end."""
        size = (await self.head(name)).size
        if not size:
            return b""
        start = max(0, size - length)
        return bytes(await self.get_range(name, start, size - start))


def azure_wires(location: CloudLocation) -> tuple[CloudSigning, AzureWire]:
    """Raises Unauthorized (no credentials), InvalidConfig (no account)."""
    account = AzureAccount(location)
    via = connections_to(account.endpoint)
    try:
        vendor = AzureVendor(location, account, sender_to(via))
    except ValueError as error:
        raise InvalidConfig(f"Azure configuration: {error}") from error
    signing = CloudSigning(vendor)
    provider = Provider(account.for_obstore)
    return signing, AzureWire(partial(_open, location, account, provider), provider, signing, via)


def _open(location: CloudLocation, account: AzureAccount, provider: Provider, options: ClientConfig) -> AzureStore:
    return AzureStore(
        location.bucket,
        account_name=account.name,
        endpoint=account.endpoint,
        credential_provider=provider,
        client_options=options,
        retry_config={"max_retries": 0},
    )


@contextmanager
def azure_errors() -> Iterator[None]:
    """Raise the library's exceptions as the wire's."""
    try:
        yield
    except ClientAuthenticationError as error:
        if error.status_code is None:
            raise Unauthorized(f"{NO_CREDENTIALS} ({error.message})", object_key="Azure credentials") from error
        raise _refused(error) from error
    except HttpResponseError as error:
        if error.status_code is None:
            raise S3Silent(type(error).__name__) from error
        raise _refused(error) from error
    except AzureError as error:
        raise S3Silent(type(error).__name__) from error


def _refused(error: HttpResponseError) -> S3Refused:
    response: Any = error.response
    answer = refused(int(error.status_code or 500), response.headers, response.body() or b"")
    answer.code = response.headers.get("x-ms-error-code") or answer.code
    return answer
