"""`GcsVendor`: Google Cloud Storage, by google-auth and HTTP requests that are sent exactly once.

obstore and signed URLs use the XML API, lists, heads and deletions the JSON API. The two show other etags of
one object, so the etag here is the object's generation, from the JSON API alone; each write gives a new one.

A put creates by `x-goog-if-generation-match: 0`. Google signs this header, so a signed URL cannot be sent
without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from obstore.store import GCSStore

from ledgermq.errors import StoreUnusable
from ledgermq_ledger.object_store.clouds.connections import connections_to, sender_to
from ledgermq_ledger.object_store.clouds.google_account import GoogleAccount, google_errors
from ledgermq_ledger.object_store.clouds.location import CloudLocation
from ledgermq_ledger.object_store.clouds.signing import CloudSigning, Page
from ledgermq_ledger.object_store.clouds.v4_signing import Signer, signed_url
from ledgermq_ledger.object_store.s3.obstore_wire import ObstoreWire, Provider
from ledgermq_ledger.object_store.s3.sending import Sender
from ledgermq_ledger.object_store.s3.wire import S3Object, S3Refused, refused

if TYPE_CHECKING:  # obstore has it for type checkers alone
    from obstore.store import ClientConfig

ENDPOINT = "https://storage.googleapis.com"
SIGNERS_MAX = 8
"""Requests to IAM at a time, for credentials without a private key."""
_OBJECT_FIELDS = "name,size,generation,updated"


class GcsVendor:
    create_headers: Mapping[str, str] = {"x-goog-if-generation-match": "0"}

    def __init__(self, location: CloudLocation, account: GoogleAccount, sender: Sender) -> None:
        self._account = account
        self._endpoint = location.endpoint or ENDPOINT
        self._bucket = location.bucket
        self._objects = f"{self._endpoint}/storage/v1/b/{location.bucket}/o"
        self.sender = sender
        self.clock_url = f"{self._endpoint}/{location.bucket}"

    def list_page(self, prefix: str, start_after: str, token: str | None) -> Page:
        asked = {"prefix": prefix, "maxResults": "1000", "fields": f"items({_OBJECT_FIELDS}),nextPageToken"}
        if start_after:
            asked["startOffset"] = start_after
        if token:
            asked["pageToken"] = token
        found = self._json("GET", f"{self._objects}?{urlencode(asked)}", of_bucket=True)
        entries = [
            {"Key": item["name"], "Size": int(item["size"]), "ETag": item["generation"], "LastModified": _time(item)}
            for item in found.get("items", ())
            if item["name"] > start_after  # the start itself is among them
        ]
        return entries, found.get("nextPageToken") or None

    def head(self, name: str) -> S3Object:
        found = self._json("GET", f"{self._url(name)}?{urlencode({'fields': _OBJECT_FIELDS})}")
        return S3Object(int(found["size"]), found["generation"], int(_time(found).timestamp() * 1000))

    def delete(self, name: str) -> None:
        self._json("DELETE", self._url(name))

    def sign_creates(self, names: Sequence[str], life_s: int) -> list[str]:
        sign = partial(self._sign, self._account.signer(), "PUT", self.create_headers, life_s)
        if self._account.has_private_key:
            return [sign(name) for name in names]
        with google_errors(), ThreadPoolExecutor(SIGNERS_MAX, "cloud-sign") as pool:
            return list(pool.map(sign, names))

    def sign_get(self, name: str, life_s: int) -> str | None:
        if not self._account.has_private_key:
            return None
        return self._sign(self._account.signer(), "GET", {}, life_s, name)

    def signed_ms(self, url: str, life_ms: int) -> int:
        signed = parse_qs(urlsplit(url).query)["X-Goog-Date"][0]
        return int(datetime.strptime(signed, "%Y%m%dT%H%M%S%z").timestamp() * 1000)

    def is_over(self, url: str) -> bool:
        life_s = int(parse_qs(urlsplit(url).query)["X-Goog-Expires"][0])
        return datetime.now(UTC).timestamp() > self.signed_ms(url, 0) / 1000 + life_s

    def close(self) -> None:
        self.sender.close()

    def _url(self, name: str) -> str:
        return f"{self._objects}/{quote(name, safe='')}"

    def _sign(self, signer: Signer, method: str, headers: Mapping[str, str], life_s: int, name: str) -> str:
        path = f"/{self._bucket}/{name}"
        return signed_url(signer, method, self._endpoint, path, headers, life_s, datetime.now(UTC))

    def _json(self, method: str, url: str, *, of_bucket: bool = False) -> dict[str, Any]:
        """Send one request of the JSON API. `of_bucket`: "not found" then refers to the bucket."""
        answer = self.sender.send(method, url, {"Authorization": f"Bearer {self._account.token()}"})
        if answer.status not in (200, 204):
            raise _refused(answer.status, answer.headers, answer.body, of_bucket)
        try:
            found: dict[str, Any] = json.loads(answer.body or b"{}")
        except ValueError:
            raise StoreUnusable("Google Cloud Storage answered what is not JSON: is the endpoint right?") from None
        return found


def _time(item: Mapping[str, str]) -> datetime:
    return datetime.fromisoformat(item["updated"])


def _refused(status: int, headers: Mapping[str, str], body: bytes, of_bucket: bool) -> S3Refused:
    """For a missing bucket and for a missing object Google gives one reason, notFound; the texts differ."""
    answer = refused(status, headers, b"")
    try:
        said = json.loads(body)["error"]
        answer.message = str(said["message"])[:500]
        answer.code = str(said["errors"][0]["reason"])
    except (ValueError, LookupError, TypeError):
        answer.code = answer.code or "(no reason)"
    if status == 404:
        answer.code = "NoSuchBucket" if of_bucket or "bucket does not exist" in answer.message else "NoSuchKey"
    return answer


class GcsSigning(CloudSigning):
    def __init__(self, vendor: GcsVendor) -> None:
        super().__init__(vendor)
        self._gcs = vendor

    async def head(self, name: str) -> S3Object:
        return await self._run(self._readers, partial(self._gcs.head, name))


class GcsWire(ObstoreWire):
    """Single objects by obstore, except for `head`: see the module on etags."""

    def __init__(self, location: CloudLocation, account: GoogleAccount, signing: GcsSigning) -> None:
        via = connections_to(location.endpoint or ENDPOINT)
        provider = Provider(account.for_obstore)
        super().__init__(partial(_open, location, provider), provider, signing, via)
        self._gcs = signing

    async def head(self, name: str) -> S3Object:
        return await self._gcs.head(name)


def gcs_wires(location: CloudLocation) -> tuple[GcsSigning, GcsWire]:
    """Raises Unauthorized (no credentials)."""
    account = GoogleAccount()
    via = connections_to(location.endpoint or ENDPOINT)
    signing = GcsSigning(GcsVendor(location, account, sender_to(via)))
    return signing, GcsWire(location, account, signing)


def _open(location: CloudLocation, provider: Provider, options: ClientConfig) -> GCSStore:
    return GCSStore(
        location.bucket,
        base_url=location.endpoint or ENDPOINT,
        credential_provider=provider,
        client_options=options,
        retry_config={"max_retries": 0},
    )
