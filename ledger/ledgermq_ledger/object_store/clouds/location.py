"""Parse the URL of a root in Azure Blob Storage or Google Cloud Storage:

    az://container/prefix?account=name
    gs://bucket/prefix

`endpoint=http://host:port` names an emulator, or another way to the cloud. Credentials come from each cloud's
own places alone: a root URL is printed, stored and handed to other processes, so it holds no secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.object_store.s3.location import endpoint_of, prefix_of, settings_of, shown, url_of


@dataclass(frozen=True, slots=True)
class Naming:
    """How a cloud's URL is written. `kind`: its word for a bucket."""

    kind: str
    bucket: re.Pattern[str]
    settings: tuple[str, ...]
    at: str
    """What to do instead of an '@'."""


CLOUDS = {
    "az": Naming(
        "container",
        re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}\Z"),
        ("account", "endpoint"),
        "a storage account is the parameter account (az://container/prefix?account=name)",
    ),
    "gs": Naming(
        "bucket",
        re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z"),
        ("endpoint",),
        "a service account is a file that GOOGLE_APPLICATION_CREDENTIALS names",
    ),
}
"""By the scheme."""
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """`scheme`: one of CLOUDS. `bucket`: on Azure the container. `prefix` has no "/" at its ends.
    `account`: Azure's; None: from the environment. `endpoint`: None: the cloud's own.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    account: str | None = None
    endpoint: str | None = None

    @property
    def url(self) -> str:
        given = {"account": self.account, "endpoint": self.endpoint}
        return url_of(self.scheme, self.bucket, self.prefix, given)


def parse_cloud_url(url: str) -> CloudLocation:
    """Parse an az:// or gs:// URL. Raises InvalidConfig, whose text never repeats what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"root URL {shown(url)!r}: {error}") from error
    scheme, bucket = parts.scheme, parts.netloc
    naming = CLOUDS[scheme]
    if "@" in bucket:
        raise InvalidConfig(f"a root URL has no '@': credentials come from the environment, and {naming.at}")
    if not naming.bucket.match(bucket):
        raise InvalidConfig(f"root URL {shown(url)!r}: {bucket!r} is not a valid name of a {naming.kind}")
    settings = settings_of(url, parts.query, naming.settings)
    account = settings.get("account")
    if account is not None and not _ACCOUNT.match(account):
        raise InvalidConfig(f"root URL {shown(url)!r}: a storage account has 3 to 24 lower-case letters and digits")
    endpoint = endpoint_of(url, settings.get("endpoint"))
    return CloudLocation(scheme, bucket, prefix_of(url, parts.path), account, endpoint)
