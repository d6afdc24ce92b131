"""Parse the URL of a root in Azure Blob Storage: az://container/prefix?account=name

`endpoint=http://host:port` names an emulator. Credentials come from each cloud's own places alone: a
root URL is printed, stored and handed to other processes, so it holds no secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.object_store.s3.location import endpoint_of, prefix_of, settings_of, shown

_NAMES = {
    "az": re.compile(r"[a-z0-9](-?[a-z0-9]){2,62}\Z"),
}
_SETTINGS = {"az": ("account", "endpoint")}
_KINDS = {"az": "container"}
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}\Z")


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """`scheme`: az. `bucket`: the container. `prefix` has no "/" at its ends. `account`: None: from the
    environment. `endpoint`: None: the cloud's own.
    """

    scheme: str
    bucket: str
    prefix: str = ""
    account: str | None = None
    endpoint: str | None = None

    @property
    def url(self) -> str:
        given = {"account": self.account, "endpoint": self.endpoint}
        query = urlencode({name: value for name, value in given.items() if value is not None}, safe=":/")
        path = f"/{self.prefix}" if self.prefix else ""
        return f"{self.scheme}://{self.bucket}{path}" + (f"?{query}" if query else "")


def parse_cloud_url(url: str) -> CloudLocation:
    """Parse an az:// URL. Raises InvalidConfig, whose text never repeats what may be a secret."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidConfig(f"root URL {shown(url)!r}: {error}") from error
    if "@" in parts.netloc:
        raise InvalidConfig(
            "a root URL has no '@': credentials come from the environment, and a storage account is the parameter"
            " account (az://container/prefix?account=name)"
        )
    scheme, bucket = parts.scheme, parts.netloc
    if not _NAMES[scheme].match(bucket):
        raise InvalidConfig(f"root URL {shown(url)!r}: {bucket!r} is not a valid name of a {_KINDS[scheme]}")
    settings = settings_of(url, parts.query, _SETTINGS[scheme])
    account = settings.get("account")
    if account is not None and not _ACCOUNT.match(account):
        raise InvalidConfig(f"root URL {shown(url)!r}: a storage account has 3 to 24 lower-case letters and digits")
    endpoint = endpoint_of(url, settings.get("endpoint"))
    return CloudLocation(scheme, bucket, prefix_of(url, parts.path), account, endpoint)
