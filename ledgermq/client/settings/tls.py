"""TLS of a client: which files, how the environment names them, and gRPC's credentials of what they
hold now.

A channel keeps the credentials with which it was opened. `Credentials` therefore has a version,
which rises when the files have changed; `GrpcConnection` opens a new channel then. Files that
cannot be used change nothing.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from ledgermq.environment import PREFIX, TLS, from_settings_file, switch_of
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.naming.names import is_host
from ledgermq.runtime.process.log import get_log

LOOK_S = 1.0
"""Time between two looks at the files, while calls are made."""
ALPN = "h2"

Stamp = tuple[tuple[int, int, int], ...]

_log = get_log("ledgermq.tls")


class _Pem(NamedTuple):
    """Contents of the files; None: not given."""

    ca: bytes | None
    cert: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Connect to brokers by TLS. The certificate of a broker must be valid, signed by one of the
    authorities, and be made out for the host name or IP address that the client connects to.

        ledgermq.connect("broker.example:9650", tls=ledgermq.Tls(ca="ca.pem"))

    All values are paths of PEM files. `ca`: authorities that sign the brokers' certificates; None:
    those that the machine trusts. `cert`, `key`: certificate and private key of this client, for
    brokers that ask for one; both or none. Files that change are read again: new connections use
    what they hold then. `server_name`: the host name or IP address that certificates of brokers must be made
    out for, in place of the one connected to: for brokers whose addresses come and go, as in Kubernetes.
    Raises InvalidConfig.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            given: object = getattr(self, name)
            if given is None:
                continue
            if not isinstance(given, str | Path) or not str(given):
                raise InvalidConfig(f"{name} of Tls must be the path of a PEM file, not {given!r}")
            object.__setattr__(self, name, Path(given).expanduser())
        if self.server_name is not None and not is_host(self.server_name):
            raise InvalidConfig(
                f"server_name of Tls must be a host name or an IP address, without a port, not {self.server_name!r}"
            )
        if (self.cert is None) != (self.key is None):
            missing, there = ("key", "cert") if self.key is None else ("cert", "key")
            raise InvalidConfig(f"{there} of Tls needs {missing}: a client proves itself by both files, or by none")

    def context(self) -> ssl.SSLContext:
        """Return a context of Python's ssl module with these files. Raises InvalidConfig."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            if self.ca is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.load_verify_locations(self.ca)
        except (OSError, ssl.SSLError) as error:
            raise _unreadable("ca", self.ca, error) from error
        if self.cert is not None and self.key is not None:
            try:
                context.load_cert_chain(self.cert, self.key, lambda: "")
            except (OSError, ssl.SSLError) as error:
                raise self._wrong_pair(error) from error
        return context

    def _wrong_pair(self, error: OSError) -> InvalidConfig:
        for name, path in (("cert", self.cert), ("key", self.key)):
            if path is not None and not os.access(path, os.R_OK):
                return _unreadable(name, path, FileNotFoundError("no such file, or it may not be read"))
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            return InvalidConfig(f"TLS: {self.key} is not the private key of the certificate in {self.cert}")
        return InvalidConfig(
            f"TLS: {self.cert} and {self.key} must be a certificate and its private key as PEM, the key without a"
            f" password ({error})"
        )

    def stamp(self) -> Stamp:
        """Return what changes when a file does. Raises OSError."""
        found = (os.stat(path) for path in (self.ca, self.cert, self.key) if path is not None)
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)

    def read(self) -> _Pem:
        """Return the contents of the files, which were checked. Raises InvalidConfig."""
        self.context()
        try:
            return _Pem(
                _system_authorities() if self.ca is None else Path(self.ca).read_bytes(),
                None if self.cert is None else Path(self.cert).read_bytes(),
                None if self.key is None else Path(self.key).read_bytes(),
            )
        except OSError as error:
            raise InvalidConfig(f"TLS: {error}") from error


class Credentials:
    """gRPC's credentials of what the files of `tls` hold. Raises InvalidConfig if they cannot be used."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self.version = 0
        self._stamp = _stamp_of(tls)
        self._refused: Stamp | None = None
        self._looked_s = 0.0
        self._channel = _channel_credentials(tls)

    def current(self) -> grpc.ChannelCredentials:
        """Return the credentials for a new channel."""
        return self._channel

    def look(self) -> int:
        """Look at the files, once a second at most; return the version. A loop must run."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._looked_s + LOOK_S:
            self._looked_s = now_s
            self._reload()
        return self.version

    def _reload(self) -> None:
        stamp = _stamp_of(self.tls)
        if stamp in (self._stamp, self._refused) or stamp is None:
            return
        try:
            channel = _channel_credentials(self.tls)
        except InvalidConfig as error:
            self._refused = stamp
            _log.warning("the changed files are not used, connections keep the former ones: %s", error.message)
            return
        if _stamp_of(self.tls) == stamp:  # otherwise they are being replaced: the next look decides
            self._channel, self._stamp, self._refused = channel, stamp, None
            self.version += 1


def _stamp_of(tls: Tls) -> Stamp | None:
    """Return None while a file is missing, because it is being replaced."""
    try:
        return tls.stamp()
    except OSError:
        return None


def _channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    pem = tls.read()
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def _system_authorities() -> bytes | None:
    """Return the authorities that this machine trusts; None: gRPC's own list."""
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None


def _unreadable(name: str, path: str | Path | None, error: OSError) -> InvalidConfig:
    why = "no certificate in PEM format is in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
    return InvalidConfig(f"TLS: {name} file {path}: {why}")


def chosen_tls(given: Tls | bool | None, environment: Mapping[str, str] | None = None) -> Tls | None:
    """Return the TLS to connect with; None: plain connections.

    `given`: a `Tls`; False: none; True: TLS with the files that the environment names; None: as the
    environment says, which is TLS if LEDGERMQ_TLS is true, or if it is not set and a
    LEDGERMQ_TLS_… file is. The TOML file of LEDGERMQ_CONFIG gives what variables do not. Raises
    InvalidConfig.
    """
    if given is False or isinstance(given, Tls):
        return given or None
    variables = os.environ if environment is None else environment
    found = from_settings_file(variables)
    for name in TLS:
        if value := variables.get(f"{PREFIX}{name.upper()}"):
            found[name] = value
    files = {
        "ca": found.get("tls_ca_file") or None,
        "cert": found.get("tls_cert_file") or None,
        "key": found.get("tls_key_file") or None,
    }
    is_on = given or switch_of("tls", found.get("tls", any(files.values())))
    return Tls(**files, server_name=found.get("tls_server_name") or None) if is_on else None


def check_tls(name: str, value: Any) -> None:
    """Check the setting `tls` of a client. Raises InvalidConfig."""
    if not isinstance(value, bool | Tls):
        raise InvalidConfig(f"{name} must be True, False or a ledgermq.Tls, not {value!r}")
