"""Parse the URL of a root in S3.

    s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1&path_style=true
    s3://bucket/prefix?sse=aws:kms&kms_key=alias/ledgermq

What the URL leaves out comes from the usual AWS environment and files: AWS_ENDPOINT_URL,
AWS_REGION, AWS_PROFILE and so on. Credentials come from there alone: a root URL is printed, stored
and handed to other processes, so it holds no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ledgermq.errors import InvalidConfig

PREFIX_LENGTH_MAX = 120
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,254}\Z")
_PREFIX = re.compile(r"([A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*)?\Z")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}\Z")
_KMS_KEY = re.compile(r"[A-Za-z0-9:/_.-]{1,2048}\Z")
_SETTINGS = ("endpoint", "region", "path_style", "sse", "kms_key")
SSE = ("AES256", "aws:kms")
_DIRECTORY_BUCKET = "--x-s3"


class Location(Protocol):
    """Where a root lies. `url`: without secrets; `prefix` has no "/" at its ends."""

    @property
    def url(self) -> str: ...

    @property
    def prefix(self) -> str: ...


@dataclass(frozen=True, slots=True)
class S3Location:
    """`prefix` has no "/" at its ends. None: from the environment.

    `path_style`: ``endpoint/bucket/key`` instead of ``bucket.endpoint/key``; by default for
    endpoints other than Amazon's. `sse`: how the store is asked to encrypt each object, AES256 by the
    store's keys (SSE-S3), aws:kms by a key of its key service (SSE-KMS); None: as the bucket says.
    `kms_key`: id, ARN or alias of that key; None: the store's default.
    """

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    sse: str | None = None
    kms_key: str | None = None

    @property
    def url(self) -> str:
        path_style = None if self.path_style is None else str(self.path_style).lower()
        given = {
            "endpoint": self.endpoint,
            "region": self.region,
            "path_style": path_style,
            "sse": self.sse,
            "kms_key": self.kms_key,
        }
        return url_of("s3", self.bucket, self.prefix, given)


def url_of(scheme: str, bucket: str, prefix: str, given: Mapping[str, str | None]) -> str:
    """Return a root's URL. `given`: its parameters; those that are None are left out."""
    query = urlencode({name: value for name, value in given.items() if value is not None}, safe=":/")
    path = f"/{prefix}" if prefix else ""
    return f"{scheme}://{bucket}{path}" + (f"?{query}" if query else "")


def parse_s3_url(url: str) -> S3Location:
    """Parse an S3 URL. Raises InvalidConfig, whose text never repeats what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"root URL {shown(url)!r}: {error}") from error
    if "@" in parts.netloc:
        raise InvalidConfig(
            "credentials do not belong in a root URL: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if not _BUCKET.match(parts.netloc):
        raise InvalidConfig(f"root URL {shown(url)!r}: {parts.netloc!r} is not a valid bucket name")
    if parts.netloc.endswith(_DIRECTORY_BUCKET):
        raise InvalidConfig(
            f"root URL {shown(url)!r}: directory buckets list keys in no order; use a general-purpose bucket"
        )
    prefix = prefix_of(url, parts.path)
    settings = _settings(url, parts.query)
    endpoint = endpoint_of(url, settings.get("endpoint"))
    region = settings.get("region")
    if region is not None and not _REGION.match(region):
        raise InvalidConfig(f"root URL {shown(url)!r}: a region has a name like eu-central-1")
    sse, kms_key = settings.get("sse"), settings.get("kms_key")
    if sse is not None and sse not in SSE:
        raise InvalidConfig(f"root URL {shown(url)!r}: sse has to be one of {', '.join(SSE)}")
    if kms_key is not None and (sse != "aws:kms" or not _KMS_KEY.match(kms_key)):
        raise InvalidConfig(f"root URL {shown(url)!r}: kms_key is the id of a key, and goes with sse=aws:kms")
    return S3Location(parts.netloc, prefix, endpoint, region, _truth(url, settings.get("path_style")), sse, kms_key)


def prefix_of(url: str, path: str) -> str:
    """Return the prefix in a root URL's path. Raises InvalidConfig."""
    prefix = unquote(path).strip("/")
    if len(prefix) > PREFIX_LENGTH_MAX or not _PREFIX.match(prefix) or {".", ".."} & set(prefix.split("/")):
        raise InvalidConfig(
            f"root URL {shown(url)!r}: a prefix has up to {PREFIX_LENGTH_MAX} letters, digits, '.', '_', '=', '-' and"
            " single '/'"
        )
    return prefix


def endpoint_of(url: str, endpoint: str | None) -> str | None:
    """Return the endpoint that a root URL names. Raises InvalidConfig."""
    if endpoint is not None and not _is_endpoint(endpoint):
        raise InvalidConfig(f"root URL {shown(url)!r}: the endpoint has to be http://host:port or https://host:port")
    return endpoint


def settings_of(url: str, query: str, known: Sequence[str]) -> dict[str, str]:
    """Return the parameters of a root URL. Raises InvalidConfig for one that is not known."""
    settings = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InvalidConfig(
            f"root URL {shown(url)!r}: unknown parameter {', '.join(unknown)}; known are {', '.join(known)}"
        )
    return settings


def _settings(url: str, query: str) -> dict[str, str]:
    settings = dict(parse_qsl(query, keep_blank_values=True))
    if "client" in settings:
        raise InvalidConfig(
            f"root URL {shown(url)!r}: the parameter client no longer exists; leave it out, obstore sends the requests"
        )
    return settings_of(url, query, _SETTINGS)


def _is_endpoint(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return (
        text.isascii()
        and text.isprintable()
        and parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and parts.path in ("", "/")
        and not (parts.query or parts.fragment)
    )


def _truth(url: str, text: str | None) -> bool | None:
    if text not in (None, "true", "false"):
        raise InvalidConfig(f"root URL {shown(url)!r}: path_style has to be true or false")
    return None if text is None else text == "true"


def shown(url: str) -> str:
    return url.partition("?")[0]
