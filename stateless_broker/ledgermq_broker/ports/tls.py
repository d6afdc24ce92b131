"""TLS of a process's ports: check certificate files, and follow their changes without a restart.

New connections use what the files hold now. Files that cannot be used change nothing: the ports
keep what was read before, one line is logged, and the meter counts it. Connections that exist are
left alone.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ledgermq.client.messages.record import datetime_of
from ledgermq.client.settings.tls import Tls
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.tasks import end
from ledgermq.sources import Sources
from ledgermq_broker.logs import get_logger
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings

LOOK_S = 1.0
"""Time between two looks at the files. A change that is bad at two looks is refused: the files of a
pair are replaced one after the other.
"""

Stamp = tuple[tuple[int, int, int], ...]

log = get_logger(__name__)


class TlsMeter:
    """Hooks that may be overridden."""

    def in_use(self, expires: datetime) -> None:
        """The ports use a certificate that expires then."""

    def reloaded(self) -> None:
        """Changed files are in use."""

    def refused(self) -> None:
        """Changed files cannot be used."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Contents of the files, which fit together. `begins`, `expires`: of the certificate."""

    cert: bytes
    key: bytes
    client_ca: bytes | None
    begins: datetime
    expires: datetime

    def problem(self, now: datetime) -> str | None:
        """Return why clients refuse the certificate at this time."""
        if now > self.expires:
            return f"the certificate has expired at {self.expires.isoformat()}"
        return f"the certificate is valid only from {self.begins.isoformat()} on" if now < self.begins else None


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Paths of PEM files: certificate with its chain, private key, authorities of clients."""

    cert: str
    key: str
    client_ca: str | None

    def stamp(self) -> Stamp:
        """Return what changes when a file does. Raises OSError."""
        found = (os.stat(path) for path in (self.cert, self.key, self.client_ca) if path is not None)
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in found)

    def load(self) -> Loaded:
        """Read the files and check that they fit together. Raises InvalidConfig."""
        pem = {name: _content(name, path) for name, path in self._given()}
        try:
            leaf = x509.load_pem_x509_certificates(pem["tls_cert_file"])[0]
        except ValueError as error:
            raise InvalidConfig(f"tls_cert_file {self.cert} has no certificate in PEM format") from error
        try:
            key = load_pem_private_key(pem["tls_key_file"], None)
        except TypeError as error:
            raise InvalidConfig(f"tls_key_file {self.key} is encrypted: give a key without a password") from error
        except ValueError as error:
            raise InvalidConfig(f"tls_key_file {self.key} has no private key in PEM format") from error
        if key.public_key() != leaf.public_key():
            raise InvalidConfig(f"tls_key_file {self.key} is not the key of the certificate in {self.cert}")
        authorities = pem.get("tls_client_ca_file")
        if authorities is not None:
            try:
                x509.load_pem_x509_certificates(authorities)
            except ValueError as error:
                raise InvalidConfig(f"tls_client_ca_file {self.client_ca} has no certificate in PEM format") from error
        return Loaded(
            pem["tls_cert_file"], pem["tls_key_file"], authorities, leaf.not_valid_before_utc, leaf.not_valid_after_utc
        )

    def _given(self) -> Iterable[tuple[str, str]]:
        yield "tls_cert_file", self.cert
        yield "tls_key_file", self.key
        if self.client_ca is not None:
            yield "tls_client_ca_file", self.client_ca


def _content(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidConfig(f"{name} {path}: {error.strerror or error}") from error


class Certificates:
    """What the ports of this process use. Raises InvalidConfig if the files cannot be used.

    `trouble`: why changed files are not in use; None: all is well.
    """

    def __init__(self, files: CertificateFiles, sources: Sources, meter: TlsMeter) -> None:
        self._files = files
        self._sources = sources
        self._meter = meter
        self._stamp = self._stamp_now()
        self._suspect: Stamp | None = None
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self.trouble: str | None = None
        self.loaded = files.load()
        if problem := self.loaded.problem(self._now()):
            log.error("clients refuse this broker", tls_cert_file=files.cert, why=problem)
        meter.in_use(self.loaded.expires)

    def grpc_credentials(self, *, asks_clients: bool) -> grpc.ServerCredentials:
        """Return credentials for one gRPC port. `asks_clients`: refuse clients without a certificate
        of the authorities.
        """
        given = self.loaded

        def changed() -> grpc.ServerCertificateConfiguration | None:
            """gRPC calls this in one of its threads, before each handshake."""
            nonlocal given
            if given is self.loaded:
                return None
            given = self.loaded
            return _configuration(given, asks_clients=asks_clients)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(given, asks_clients=asks_clients),
            changed,  # type: ignore[arg-type]  # the stubs forget that None means "no change"
            require_client_authentication=asks_clients,
        )

    def http_context(self, *, asks_clients: bool) -> ssl.SSLContext:
        """Return a context for one HTTP port. Raises InvalidConfig."""
        first = self._contexts[asks_clients] = self._context(asks_clients=asks_clients)

        def newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
            connection.context = self._contexts[asks_clients]

        first.sni_callback = newest  # called without a server name, too
        return first

    def _context(self, *, asks_clients: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._files.cert, self._files.key, lambda: "")
            if asks_clients:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self._files.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfig(f"TLS: {self._files.cert}, {self._files.key}: {error}") from error
        return context

    async def follow(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = await asyncio.to_thread(self._stamp_now)
            if stamp is not None and stamp != self._stamp:
                self._take(stamp)

    def _take(self, stamp: Stamp) -> None:
        try:
            loaded = self._files.load()
            if problem := loaded.problem(self._now()):
                raise InvalidConfig(f"tls_cert_file {self._files.cert}: {problem}")
            contexts = {asks: self._context(asks_clients=asks) for asks in self._contexts}
        except InvalidConfig as error:
            self._refuse(stamp, error)
            return
        self.loaded = loaded
        self._contexts = contexts
        self._stamp, self._suspect, self.trouble = stamp, None, None
        self._meter.in_use(loaded.expires)
        self._meter.reloaded()
        log.info("certificate reloaded", tls_cert_file=self._files.cert, expires=loaded.expires.isoformat())

    def _refuse(self, stamp: Stamp, error: InvalidConfig) -> None:
        if stamp != self._suspect:
            self._suspect = stamp
            return
        self._stamp = stamp
        self.trouble = error.message
        self._meter.refused()
        log.error("certificate not reloaded, the former one stays in use", why=error.message)

    def problems(self) -> list[str]:
        """Return what an operator has to repair."""
        expired = self.loaded.problem(self._now())
        found = [] if expired is None else [f"clients refuse this broker: {expired}"]
        return found if self.trouble is None else [*found, f"changed TLS files are not in use: {self.trouble}"]

    def _stamp_now(self) -> Stamp | None:
        """Return None while a file is missing, because it is being replaced."""
        try:
            return self._files.stamp()
        except OSError:
            return None

    def _now(self) -> datetime:
        return datetime_of(self._sources.now_us()).astimezone(UTC)


def _configuration(loaded: Loaded, *, asks_clients: bool) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(loaded.key, loaded.cert)], loaded.client_ca if asks_clients else None
    )


def check_tls(settings: ProcessSettings) -> None:
    """Check which settings of TLS are given beside each other. Raises InvalidConfig."""
    asks_clients = isinstance(settings, BrokerSettings) and settings.tls_client_auth == "required"
    authorities = "the authorities that sign clients' certificates"
    needs = (
        ("tls_cert_file", settings.tls_cert_file, "tls_key_file", settings.tls_key_file, "its private key"),
        ("tls_key_file", settings.tls_key_file, "tls_cert_file", settings.tls_cert_file, "its certificate"),
        ("tls_client_auth = required", asks_clients, "tls_cert_file", settings.tls_cert_file, "a certificate"),
        ("tls_client_auth = required", asks_clients, "tls_client_ca_file", settings.tls_client_ca_file, authorities),
        ("admin_tls", settings.admin_tls != "off", "tls_cert_file", settings.tls_cert_file, "a certificate"),
        (
            "admin_tls = mutual",
            settings.admin_tls == "mutual",
            "tls_client_ca_file",
            settings.tls_client_ca_file,
            authorities,
        ),
    )
    for name, is_set, other, there, what in needs:
        if is_set and not there:
            raise InvalidConfig(f"setting {name} needs {other}: {what}")


@asynccontextmanager
async def followed_certificates(
    settings: ProcessSettings, sources: Sources, meter: TlsMeter | None = None
) -> AsyncIterator[Certificates | None]:
    """Yield the certificates of the settings, and follow them during the block; None without TLS.

    Raises InvalidConfig.
    """
    check_tls(settings)
    is_used = isinstance(settings, BrokerSettings) or settings.admin_tls != "off"
    if settings.tls_cert_file is None or settings.tls_key_file is None or not is_used:
        yield None
        return
    files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    certificates = Certificates(files, sources, meter or TlsMeter())
    following = asyncio.create_task(certificates.follow(), name="follow certificates")
    try:
        yield certificates
    finally:
        await end(following)


def tls_to_peers(settings: BrokerSettings) -> Tls | None:
    """Return how this broker connects to others: by TLS if it serves TLS, because all brokers of a
    cluster are set alike.
    """
    if settings.tls_cert_file is None:
        return None
    return Tls(
        ca=settings.tls_ca_file,
        cert=settings.tls_cert_file,
        key=settings.tls_key_file,
        server_name=settings.tls_server_name,
    )
