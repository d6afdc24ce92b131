"""Sign URLs of Google's XML API, version 4 with RSA: the rules of Google's page "V4 signing process with your own
program". google-cloud-storage signs so too, but sends requests that the caller did not ask for. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlsplit

ALGORITHM = "GOOG4-RSA-SHA256"
TIME_FORMAT = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Signer:
    """`email`: the service account whose key signs. `sign`: RSA PKCS #1 v1.5 over SHA-256; may send a request."""

    email: str
    sign: Callable[[bytes], bytes]


def signed_url(
    signer: Signer, method: str, endpoint: str, path: str, headers: Mapping[str, str], life_s: int, now: datetime
) -> str:
    """Return a URL that allows its holder one kind of request until `life_s` after `now`.

    `path`: /bucket/name, not quoted. `headers`: those that the request has to have, names in lower case.
    `now`: in UTC. Raises what `signer.sign` raises.
    """
    stamp = now.strftime(TIME_FORMAT)
    scope = f"{stamp[:8]}/auto/storage/goog4_request"
    signed = dict(sorted({"host": urlsplit(endpoint).netloc, **headers}.items()))
    names = ";".join(signed)
    query = "&".join(
        f"{name}={quote(value, safe='~')}"
        for name, value in (
            ("X-Goog-Algorithm", ALGORITHM),
            ("X-Goog-Credential", f"{signer.email}/{scope}"),
            ("X-Goog-Date", stamp),
            ("X-Goog-Expires", str(life_s)),
            ("X-Goog-SignedHeaders", names),
        )
    )
    quoted = quote(path, safe="/~")
    lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
    request = f"{method}\n{quoted}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    signature = signer.sign(f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}".encode())
    return f"{endpoint}{quoted}?{query}&X-Goog-Signature={signature.hex()}"
