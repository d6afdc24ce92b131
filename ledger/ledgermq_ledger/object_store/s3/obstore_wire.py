"""`ObstoreWire`: implement `S3Wire` by obstore, which signs, sends and reads requests in Rust,
outside the interpreter's lock.

Its errors contain an answer's status and body only as text, which is parsed strictly. A text that
is not known word for word is `S3Silent`, never an answer. So a change of that text causes at worst
a put that has to be looked up, and a probe at the start that fails with an error. `Retry-After`
does not get through.

Lists and deletes use `SignedWire`: obstore lists by whole parts of a path. Credentials, endpoint,
region, proxy and certificates are botocore's, so that all clients use the same bucket.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from ledgermq.errors import LedgerMQError, StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.sending import UNTRUSTED
from ledgermq_ledger.object_store.s3.signed_wire import S3Client, SignedWire, botocore_errors
from ledgermq_ledger.object_store.s3.wire import (
    CONNECT_S_MAX,
    READERS_MAX,
    WRITERS_MAX,
    Part,
    S3Object,
    S3RangesIgnored,
    S3Refused,
    S3Silent,
    S3Wire,
    Signing,
    ahead_ms,
    is_skewed,
    put_s_max,
    refused,
)

if TYPE_CHECKING:  # obstore has them for type checkers alone
    from obstore.store import ClientConfig, ObjectStore

CREDENTIALS_KEPT = timedelta(minutes=10)
"""How long obstore keeps credentials: botocore renews those that expire earlier, and obstore asks
again after half of this time.
"""
REQUEST_S_MAX = 24 * 3600
"""Effectively unlimited; each step has its own bound."""
_ENCRYPTION = {"ServerSideEncryption": "aws_server_side_encryption", "SSEKMSKeyId": "aws_sse_kms_key_id"}
"""obstore's names of botocore's parameters."""
_ANSWER = re.compile(r" - Server returned non-2xx status code: ([0-9]{3})[^\n:]*: (.*?)\n\nDebug source:\n", re.DOTALL)
_REASON = re.compile(r"HTTP error: ([a-z ]{1,60})")
_BEYOND = re.compile(r"\bsource: StartTooLarge\b")
_NOT_A_PART = re.compile(r"\bsource: (NotPartial|NoContentRange|ParseContentRange)\b")


class Provider:
    """Gives obstore its credentials. obstore calls it in its threads, and does not say why it got none."""

    def __init__(self, renew: Callable[[], dict[str, Any]]) -> None:
        """`renew` raises Unauthorized, S3Refused, S3Silent."""
        self._renew = renew
        self.refusal: Unauthorized | S3Refused | None = None
        """Why the last renewal was refused; None: it was not."""

    def __call__(self) -> Any:
        try:
            credentials = self._renew()
        except (Unauthorized, S3Refused) as refusal:
            self.refusal = refusal
            raise
        self.refusal = None
        return credentials


class ObstoreWire(S3Wire):
    def __init__(
        self, open_: Callable[[ClientConfig], ObjectStore], provider: Provider, signed: Signing, via: Connections
    ) -> None:
        """`open_` opens a store of obstore with these options of its client, and with the provider."""
        self._provider = provider
        self._signed = signed
        self._reads = open_(client_options(via, READERS_MAX, silence_s=s3_wire.SILENCE_S_MAX))
        self._puts = open_(
            client_options(via, WRITERS_MAX, silence_s=None)
        )  # its clock would start with the body, not after the body was sent

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        mode: Any = "create" if only_if_absent else "overwrite"
        async with self._errors():
            async with asyncio.timeout(put_s_max(sum(view.nbytes for view in views))):
                await self._puts.put_async(name, views[0] if len(views) == 1 else views, mode=mode, use_multipart=False)

    async def get(self, name: str) -> bytes:
        async with self._errors():
            result = await self._reads.get_async(name)
            return (await result.bytes_async()).to_bytes()

    async def get_range(self, name: str, start: int, length: int) -> Buffer:
        return await self._part(name, self._range(name, start, length))

    async def get_suffix(self, name: str, length: int) -> bytes:
        return await self._part(name, self._suffix(name, length))

    async def head(self, name: str) -> S3Object:
        async with self._errors():
            found = await self._reads.head_async(name)
        return S3Object(
            found["size"], (found["e_tag"] or "").strip('"'), int(found["last_modified"].timestamp() * 1000)
        )

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        return await self._signed.list_page(prefix, start_after, token)

    async def delete(self, names: Sequence[str]) -> None:
        await self._signed.delete(names)

    async def close(self) -> None:
        """Do nothing: connections close with the two stores, once no request is running."""

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        """Raise errors as the wire's. If the store refuses this machine's time and shows its own in
        a header that obstore hides, ask it for its time.
        """
        try:
            with _obstore_errors():
                yield
        except S3Refused as answer:
            if is_skewed(answer) and answer.code != "AccessDenied" and answer.ahead_ms is None:
                with suppress(S3Refused, S3Silent, LedgerMQError):
                    answer.ahead_ms = ahead_ms((await self._signed.clock()).headers.get("Date", ""))
            raise
        except S3Silent:
            if (refusal := self._provider.refusal) is not None:
                raise refusal from None
            raise

    async def _range(self, name: str, start: int, length: int) -> Buffer:
        async with self._errors():
            return memoryview(await self._reads.get_range_async(name, start=start, length=length))

    async def _suffix(self, name: str, length: int) -> bytes:
        async with self._errors():
            result = await self._reads.get_async(name, options={"range": {"suffix": length}})
            return (await result.bytes_async()).to_bytes()

    async def _part(self, name: str, part: Awaitable[Part]) -> Part:
        """Read a part: servers describe a part of an empty object in ways that obstore does not
        accept.
        """
        try:
            return await part
        except S3RangesIgnored:
            if (await self.head(name)).size == 0:
                return b""
            raise


@dataclass(frozen=True, slots=True)
class Connections:
    """How a store is reached. `ca_bundle`: a file with the certificates that are trusted; None: the usual ones."""

    endpoint: str
    proxy: str | None = None
    ca_bundle: str | None = None


def client_options(via: Connections, connections_max: int, silence_s: float | None) -> ClientConfig:
    """Return every option that obstore would otherwise take from the environment by its own rules."""
    options: ClientConfig = {
        "allow_http": urlsplit(via.endpoint).scheme == "http",
        "connect_timeout": timedelta(seconds=CONNECT_S_MAX),
        "timeout": timedelta(seconds=REQUEST_S_MAX),
        "pool_max_idle_per_host": str(connections_max),
        "http1_only": True,
    }
    if silence_s is not None:
        options["read_timeout"] = timedelta(seconds=silence_s)
    if via.proxy:
        options["proxy_url"] = via.proxy
    if via.ca_bundle:
        options["root_certificate"] = Path(via.ca_bundle).read_bytes()
    return options


def s3_obstore_wire(client: S3Client, signed: SignedWire) -> ObstoreWire:
    """Return the wire for a bucket of S3."""
    path = urlsplit(client.presign("head_object", Key="x"))
    endpoint, in_path = f"{path.scheme}://{path.netloc}", path.path == f"/{client.bucket}/x"
    via = Connections(endpoint, client.proxy, client.ca_bundle)
    provider = Provider(partial(_credentials, client))
    return ObstoreWire(partial(_open, client, provider, endpoint, in_path), provider, signed, via)


def _open(client: S3Client, provider: Provider, endpoint: str, in_path: bool, options: ClientConfig) -> S3Store:
    encryption: Any = {_ENCRYPTION[name]: value for name, value in client.encryption.parameters.items()}
    return S3Store(
        client.bucket,
        endpoint=endpoint,
        aws_endpoint_url_s3=endpoint,
        virtual_hosted_style_request=not in_path,
        region=client.region,
        conditional_put="etag",
        skip_signature=False,
        unsigned_payload=True,  # as with presigned URLs: TLS, and the checksums inside a body, protect it
        credential_provider=provider,
        client_options=options,
        **encryption,
        retry_config={"max_retries": 0},
    )


def _credentials(client: S3Client) -> dict[str, Any]:
    with botocore_errors():
        frozen = client.credentials.get_frozen_credentials()
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(UTC) + CREDENTIALS_KEPT,
    }


@contextmanager
def _obstore_errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise S3Silent("the upload took too long") from None
    except (BaseError, OSError) as error:  # FileNotFoundError among them
        raise _error_from(str(error)) from None  # the text holds addresses


def _error_from(text: str) -> Exception:
    if (answer := _ANSWER.search(text)) is not None:
        return refused(int(answer[1]), {}, answer[2].encode())
    if _BEYOND.search(text):  # Azurite sends an empty part of what begins where the object ends
        return S3Refused(416, "InvalidRange", "the part begins at the object's end")
    if _NOT_A_PART.search(text):
        return S3RangesIgnored()
    if "invalid peer certificate" in text:
        return StoreUnusable(UNTRUSTED)
    reason = _REASON.search(text)
    return S3Silent(reason[1] if reason else "obstore gives no reason")
