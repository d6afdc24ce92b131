"""Find out why a connection to a broker could not be made, and say what to do.

gRPC reports a refused handshake as a closed socket. One more handshake, by Python's ssl module,
gives the reason. It sends nothing but the handshake.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from ledgermq.client.settings.tls import ALPN, Tls
from ledgermq.errors import InvalidConfig

PROBE_TIMEOUT_S = 5.0
ANSWER_WAIT_S = 1.0
"""A broker that accepts a connection sends the first bytes of HTTP/2 at once. In TLS 1.3 it refuses
the client's certificate after the handshake, and gRPC closes without a reason then.
"""

_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64
_NO_TLS = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "UNEXPECTED_MESSAGE",
    "PACKET_LENGTH_TOO_LONG",
)


async def why_refused(address: str, tls: Tls | None) -> str | None:
    """Return why TLS fails at the address of a broker; None: TLS is not the reason, or it is not
    known. `tls`: of the connection; None: it is plain.
    """
    context = _any_server() if tls is None else tls.context()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            name = None if tls is None else tls.server_name
            is_closed = await _closed_after_handshake(address, context, name)
            if is_closed and tls is not None:  # a broker that has just ended looks like this, once
                is_closed = await _closed_after_handshake(address, context, name)
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(address, tls, error)
    except ssl.SSLError as error:
        return _of_alert(address, tls, error)
    except (OSError, TimeoutError, ValueError, InvalidConfig):
        return None
    if tls is None:
        return _tls_only(address)
    return _of_client(address, tls) if is_closed else None


def _any_server() -> ssl.SSLContext:
    """Return a context for a look at a port that may or may not speak TLS: nothing is sent by it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _closed_after_handshake(address: str, context: ssl.SSLContext, name: str | None) -> bool:
    """Make a handshake; return whether the broker closes the connection without sending anything. `name`: what its
    certificate must be made out for; None: the host.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context.set_alpn_protocols([ALPN])
    loop = asyncio.get_running_loop()
    # TLS begins apart from the connection. When a caller is cancelled in the turn in which the connection is made,
    # uvloop's create_connection(ssl=…) waits for no handshake any more, and logs its failure as never retrieved.
    plain, first = await loop.create_connection(_FirstBytes, host, int(port))
    try:
        if first.heard.done() or plain.is_closing():
            raise first.unasked()
        await loop.start_tls(plain, first, context, server_hostname=host if name is None else name)
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WAIT_S):
                is_closed = not await first.heard
                if first.error is not None:
                    raise first.error
                return is_closed
        return False
    finally:
        plain.abort()


class _FirstBytes(asyncio.Protocol):
    """`heard`: whether the broker sends something; False if it closes the connection. `error`: why TLS ended so."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.error: ssl.SSLError | None = None

    def data_received(self, data: bytes) -> None:
        self._set(is_sent=True)

    def eof_received(self) -> None:
        """Note it now: the transport closes itself after this, and reports its end one turn later."""
        self._set(is_sent=False)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError) and not self.heard.done():
            self.error = error
        self._set(is_sent=False)

    def unasked(self) -> OSError:
        """Return what a handshake would fail with after this: a broker that speaks first does not speak TLS."""
        if not (self.heard.done() and self.heard.result()):
            return ConnectionResetError("the broker has closed the connection")
        error = ssl.SSLError(1, "the broker speaks before the handshake")
        error.reason = "WRONG_VERSION_NUMBER"
        return error

    def _set(self, *, is_sent: bool) -> None:
        if not self.heard.done():
            self.heard.set_result(is_sent)


def _of_client(address: str, tls: Tls) -> str:
    if tls.cert is None:
        return (
            f"the broker at {address} asks for a certificate of the client: give cert and key, signed by an authority"
            " in the broker's tls_client_ca_file"
        )
    return (
        f"the broker at {address} refuses the certificate {tls.cert}: it must be valid now, and signed by an authority"
        " in the broker's tls_client_ca_file"
    )


def _of_certificate(address: str, tls: Tls | None, error: ssl.SSLCertVerificationError) -> str:
    host = address.rpartition(":")[0].strip("[]")
    if error.verify_code == _EXPIRED:
        return f"the certificate of the broker at {address} has expired: renew it there; the broker reads it by itself"
    if error.verify_code == _NOT_YET:
        return f"the certificate of the broker at {address} is not valid yet: compare the clocks of both machines"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        if tls is not None and tls.server_name is not None:
            return (
                f"the certificate of the broker at {address} is not made out for {tls.server_name!r}: give a"
                " server_name (tls_server_name) that it has, or add this one to its subject alternative names"
            )
        return (
            f"the certificate of the broker at {address} is not made out for {host!r}: connect by a name that it has,"
            " or add this one to its subject alternative names"
        )
    trusted = "this machine" if tls is None or tls.ca is None else str(tls.ca)
    return (
        f"the certificate of the broker at {address} is not signed by an authority that {trusted} has: give the file of"
        f" its authority as ca ({error.verify_message})"
    )


def _tls_only(address: str) -> str:
    return (
        f"the broker at {address} accepts TLS only: connect with tls=True, or with tls=ledgermq.Tls(ca=…) if its"
        " certificate is signed by an authority of your own (command line: --tls, --tls-ca-file)"
    )


def _of_alert(address: str, tls: Tls | None, error: ssl.SSLError) -> str | None:
    reason = error.reason or ""
    if isinstance(error, ssl.SSLEOFError) or (tls is None and "ALERT" not in reason):
        return None
    if tls is None:
        return _tls_only(address)
    if reason in _NO_TLS:
        return (
            f"the broker at {address} does not speak TLS: connect without tls, or set tls_cert_file and tls_key_file of"
            " the broker"
        )
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return _of_client(address, tls)
    return f"the TLS handshake with the broker at {address} fails: {reason or error}"
