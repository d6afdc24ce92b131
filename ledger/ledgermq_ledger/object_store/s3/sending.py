"""`Sender`: send one HTTP request with urllib3's retries off, so that the status of the one answer is
known. Never puts a URL into an error: it may hold a signature.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import urllib3

from ledgermq.errors import StoreUnusable
from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.wire import CONNECT_S_MAX, PIECE_BYTES, Answer, S3Silent, refused

UNTRUSTED = (
    "the object store's TLS certificate is not trusted; set AWS_CA_BUNDLE "
    "(for az:// REQUESTS_CA_BUNDLE) to a file with its CA certificate"
)


class Sender:
    def __init__(self, proxy: str | None, ca_certs: str, connections_max: int) -> None:
        """`ca_certs`: a file with the certificates that are trusted."""
        settings: dict[str, Any] = {"maxsize": connections_max, "ca_certs": ca_certs}
        self._http = urllib3.ProxyManager(proxy, **settings) if proxy else urllib3.PoolManager(**settings)

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: Sequence[Buffer] | None = None,
        seconds_max: float | None = None,
    ) -> Answer:
        """Send one request and return its answer, whatever its status. `seconds_max` bounds the
        sending of the body.

        Raises S3Silent, StoreUnusable (the certificate is not trusted).
        """
        headers = dict(headers or {})
        silence_s = s3_wire.SILENCE_S_MAX if seconds_max is None else min(s3_wire.SILENCE_S_MAX, seconds_max)
        if body is not None:
            headers["Content-Length"] = str(sum(memoryview(buffer).nbytes for buffer in body))
        try:
            response = self._http.request(
                method,
                url,
                headers=headers,
                body=None if body is None else _pieces(body, seconds_max),
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_S_MAX, read=silence_s),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise StoreUnusable(UNTRUSTED) from error
            raise S3Silent(type(error).__name__) from error
        return Answer(response.status, response.headers, response.data)

    def close(self) -> None:
        self._http.clear()


def expect(answer: Answer, *statuses: int) -> Answer:
    """Return the answer. Raises S3Refused if its status is another one."""
    if answer.status not in statuses:
        raise refused(answer.status, answer.headers, answer.body)
    return answer


def _pieces(body: Sequence[Buffer], seconds_max: float | None) -> Iterator[Any]:
    """Yield the body without a copy.

    An upload that takes too long is aborted; the store then keeps nothing of it.
    """
    begun = time.monotonic()
    for buffer in body:
        view = memoryview(buffer).cast("B")
        for at in range(0, len(view), PIECE_BYTES):
            if seconds_max is not None and time.monotonic() - begun > seconds_max:
                raise S3Silent(f"the upload took longer than {seconds_max} s")
            yield view[at : at + PIECE_BYTES]
