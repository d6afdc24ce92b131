"""`SignedWire`: `S3Wire` by URLs that botocore presigns and urllib3 sends, in threads; lists and
large deletes by botocore itself. `S3Client` makes the blocking requests, each sent exactly once.

Requests for single objects go with urllib3's retries off, so that the status of the one answer is
known; `If-None-Match: *` is signed into the URL of a conditional put, which therefore cannot be
sent without it. Lists and deletes of many objects, whose XML botocore reads, go through its own
client, retries off too. Both take credentials from botocore's usual chain. Knows no keys of ours.
Never puts a URL into an error: it holds a signature.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.httpsession import get_cert_path
from botocore.loaders import create_loader
from botocore.utils import get_environ_proxies

from ledgermq.errors import InvalidConfig, StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.location import S3Location
from ledgermq_ledger.object_store.s3.sending import UNTRUSTED, Sender, expect
from ledgermq_ledger.object_store.s3.wire import (
    CONNECT_S_MAX,
    READERS_MAX,
    WRITERS_MAX,
    Answer,
    S3Object,
    S3RangesIgnored,
    S3Refused,
    S3Silent,
    S3Wire,
    Signing,
    ahead_ms,
    date_ms,
    is_skewed,
    retry_after_ms,
)

URL_LIFE_S = 900
"""Life of URLs for requests that are not fenced."""
NO_CREDENTIALS = "there are no AWS credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


ONLY_IF_ABSENT = {"If-None-Match": "*"}

T = TypeVar("T")


class S3Client:
    def __init__(self, location: S3Location, connections_max: int) -> None:
        """Read configuration and credentials.

        Raises Unauthorized if there are none, InvalidConfig.
        """
        with configuration_errors():
            session = botocore.session.get_session()
            session.register_component("data_loader", _loader())
            self.credentials: Any = session.get_credentials()
            if self.credentials is None:
                raise _no_credentials()
            self._botocore: Any = session.create_client(
                "s3",
                endpoint_url=location.endpoint,
                region_name=region_of(location, session),
                config=Config(**configuration(location, connections_max)),
            )
        self.bucket = location.bucket
        self.encryption = encryption_of(location)
        self.region = str(self._botocore.meta.region_name)
        self.ca_bundle: str | None = session.get_config_variable("ca_bundle")
        self.proxy = get_environ_proxies(self._botocore.meta.endpoint_url).get(
            urlsplit(self._botocore.meta.endpoint_url).scheme
        )
        self._sender = Sender(self.proxy, self.ca_bundle or get_cert_path(True), connections_max)

    def presign(self, operation: str, life_s: int = URL_LIFE_S, **parameters: str) -> str:
        """Return a presigned URL. `operation` as botocore names it: get_object, put_object,
        head_object, delete_object, head_bucket.
        """
        with botocore_errors():
            url = self._botocore.generate_presigned_url(
                operation, Params={"Bucket": self.bucket, **parameters}, ExpiresIn=life_s
            )
            return str(url)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] | None = None,
        seconds_max: float | None = None,
    ) -> Answer:
        return self._sender.send(method, url, headers, body, seconds_max)

    def list_page(self, prefix: str, start_after: str, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """Return up to 1,000 entries (Key, Size, ETag, LastModified) and the token of the next
        page.
        """
        place = {"ContinuationToken": token} if token else {"StartAfter": start_after} if start_after else {}
        with botocore_errors(of_bucket=True):
            page = self._botocore.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **place)
        return page.get("Contents", []), page.get("NextContinuationToken")

    def delete_objects(self, names: Sequence[str]) -> None:
        """Delete at most 1,000 objects. Raises the error of the first one that failed."""
        with botocore_errors(of_bucket=True):
            answer = self._botocore.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
            )
        raise_failed(answer.get("Errors", []))

    def close(self) -> None:
        self._sender.close()
        self._botocore.close()


@dataclass(frozen=True, slots=True)
class Encryption:
    """How the store is asked to encrypt new objects: parameters of botocore's put_object, and the
    headers that a signed URL of it then needs.
    """

    parameters: Mapping[str, str]
    headers: Mapping[str, str]


def encryption_of(location: S3Location) -> Encryption:
    given = {
        ("ServerSideEncryption", "x-amz-server-side-encryption"): location.sse,
        ("SSEKMSKeyId", "x-amz-server-side-encryption-aws-kms-key-id"): location.kms_key,
    }
    chosen = {names: value for names, value in given.items() if value is not None}
    return Encryption(
        {parameter: value for (parameter, _), value in chosen.items()},
        {header: value for (_, header), value in chosen.items()},
    )


class SignedWire(S3Wire, Signing):
    """The requests of an `S3Client`, in threads."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._readers = ThreadPoolExecutor(READERS_MAX, "s3-read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, "s3-write")

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        await self._write(partial(self._put, name, buffers, only_if_absent))

    async def get(self, name: str) -> bytes:
        return await self._read(partial(self._get, name, None))

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        return await self._read(partial(self._get, name, f"bytes={start}-{start + length - 1}"))

    async def get_suffix(self, name: str, length: int) -> bytes:
        return await self._read(partial(self._get, name, f"bytes=-{length}"))

    async def head(self, name: str) -> S3Object:
        return await self._read(partial(self._head, name))

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        return await self._read(partial(self._client.list_page, prefix, start_after, token))

    async def delete(self, names: Sequence[str]) -> None:
        step = partial(self._delete_one, names[0]) if len(names) == 1 else partial(self._client.delete_objects, names)
        await self._write(step)

    async def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        """Return URLs that create these objects, each if it is absent, and that the store refuses
        after `life_s`.
        """
        return await self._read(lambda: [self._sign_create(name, life_s) for name in names])

    async def sign_get(self, name: str, life_s: int) -> str:
        """Return a URL that allows its holder to read the object for `life_s`."""
        return await self._read(partial(self._client.presign, "get_object", life_s, Key=name))

    def signed_ms(self, url: str, life_ms: int) -> int:
        signed = parse_qs(urlsplit(url).query)["X-Amz-Date"][0]
        return int(datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1000

    async def put_signed(self, url: str, buffers: Sequence[Buffer], seconds_max: float) -> None:
        headers = {**ONLY_IF_ABSENT, **self._client.encryption.headers}
        await self._write(lambda: expect(self._client.send("PUT", url, headers, buffers, seconds_max), 200))

    async def clock(self) -> Answer:
        """Return an answer that shows the store's time in its `Date`, whatever its status."""
        return await self._read(lambda: self._client.send("HEAD", self._client.presign("head_bucket")))

    async def close(self) -> None:
        """Close the wire, without waiting for cancelled requests: their threads end by themselves,
        within the time-outs.
        """
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _read(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, step)

    async def _write(self, step: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writers, step)

    def _put(self, name: str, buffers: Sequence[Buffer], only_if_absent: bool) -> None:
        encryption = self._client.encryption
        url = (
            self._sign_create(name)
            if only_if_absent
            else self._client.presign("put_object", URL_LIFE_S, Key=name, **encryption.parameters)
        )
        headers = {**(ONLY_IF_ABSENT if only_if_absent else {}), **encryption.headers}
        expect(self._client.send("PUT", url, headers, buffers), 200)

    def _get(self, name: str, wanted: str | None) -> bytes:
        answer = self._client.send(
            "GET", self._client.presign("get_object", Key=name), {"Range": wanted} if wanted else None
        )
        if wanted and answer.status == 200 and answer.body:
            raise S3RangesIgnored
        return expect(answer, 200, 206).body

    def _head(self, name: str) -> S3Object:
        headers = expect(self._client.send("HEAD", self._client.presign("head_object", Key=name)), 200).headers
        return S3Object(int(headers["Content-Length"]), headers["ETag"].strip('"'), date_ms(headers["Last-Modified"]))

    def _delete_one(self, name: str) -> None:
        expect(self._client.send("DELETE", self._client.presign("delete_object", Key=name)), 200, 204)

    def _sign_create(self, name: str, life_s: int = URL_LIFE_S) -> str:
        parameters = self._client.encryption.parameters
        return self._client.presign("put_object", life_s, Key=name, IfNoneMatch="*", **parameters)


@cache
def _loader() -> Any:
    """Return the loader that all clients share: it keeps the description of S3, which takes longer
    to parse than all the rest of opening.
    """
    return create_loader()


def configuration(location: S3Location, connections_max: int) -> dict[str, Any]:
    """Return the configuration of every botocore client."""
    style = {None: "auto", True: "path", False: "virtual"}[location.path_style]
    return {
        "signature_version": "s3v4",
        "s3": {"addressing_style": style},
        "retries": {"total_max_attempts": 1},
        "request_checksum_calculation": "when_required",  # segments and Parquet files hold checksums
        "response_checksum_validation": "when_required",
        "connect_timeout": CONNECT_S_MAX,
        "read_timeout": s3_wire.SILENCE_S_MAX,
        "max_pool_connections": connections_max,
    }


def region_of(location: S3Location, session: Any) -> str:
    return str(location.region or session.get_config_variable("region") or os.environ.get("AWS_REGION") or "us-east-1")


def _no_credentials(why: str = "") -> Unauthorized:
    """Return the store's own refusal, which `object_key` tells from a refusal of a broker."""
    return Unauthorized(f"{NO_CREDENTIALS}{why}", object_key="AWS credentials")


@contextmanager
def configuration_errors() -> Iterator[None]:
    try:
        yield
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        raise _no_credentials(f" ({error})") from error
    except (BotoCoreError, ValueError) as error:
        raise InvalidConfig(f"AWS configuration: {error}") from error


@contextmanager
def botocore_errors(*, of_bucket: bool = False) -> Iterator[None]:
    """Raise botocore's exceptions as the wire's.

    `of_bucket`: "not found" then refers to the bucket, not to an object.
    """
    try:
        yield
    except ClientError as error:
        answer = _refused(error)
        if of_bucket and answer.status == 404:
            raise StoreUnusable(f"no such bucket, or no S3 server: {error}") from error
        raise answer from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise _no_credentials() from error
    except CredentialRetrievalError as error:
        raise S3Silent(f"AWS credentials are not available at present: {error}") from error
    except BotoCoreError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise StoreUnusable(UNTRUSTED) from error
        raise S3Silent(type(error).__name__) from error


def raise_failed(errors: Sequence[Mapping[str, str]]) -> None:
    """Raise S3Refused for the first object of a delete of many that was not deleted."""
    for failed in errors:
        code = failed.get("Code", "")
        if code not in ("NoSuchKey", "NotFound"):
            raise S3Refused(_STATUS_OF.get(code, 500), code, failed.get("Message", ""))


_STATUS_OF = {"AccessDenied": 403, "SlowDown": 503, "InternalError": 500}


def _refused(error: ClientError) -> S3Refused:
    answer = error.response.get("ResponseMetadata", {})
    said = error.response.get("Error", {})
    status, headers = answer.get("HTTPStatusCode", 500), answer.get("HTTPHeaders", {})
    found = S3Refused(
        status, str(said.get("Code", "")), str(said.get("Message", "")), retry_after_ms(headers.get("retry-after", ""))
    )
    if is_skewed(found):
        found.ahead_ms = ahead_ms(headers.get("date", ""))
    return found
