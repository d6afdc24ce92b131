"""Settings of a gateway: plain frozen data. Each is declared once, with its rule and its help text, from which the
options of `ledgermq gateway` are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from math import inf
from typing import Any

from ledgermq.client.settings.declared import check_between, check_fields, checked
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.naming.client_ids import check_rack

MIB = 1024 * 1024
CONSOLES = ("off", "read", "write")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def _number(default: float | None, help_text: str, least: float = 0, most: float = inf) -> Any:
    return checked(default, lambda name, value: check_between(name, value, least, most), help_text)


def _text(default: str, help_text: str, check: Callable[[str, str], None] = lambda name, value: None) -> Any:
    def check_text(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} must be text, not {value!r}")
        check(name, value)

    return checked(default, check_text, help_text)


def _check_origins(name: str, value: str) -> None:
    for origin in words(value):
        scheme, separator, host = origin.partition("://")
        if scheme not in ("http", "https") or not separator or not host or any(sign in host for sign in "/*?#@"):
            raise InvalidConfig(f"{name}: {origin!r} is no origin like https://app.example.com; * and null are refused")
        if origin != origin.lower() or host.endswith({"http": ":80", "https": ":443"}[scheme]):
            raise InvalidConfig(
                f"{name}: browsers never send {origin!r}: write it in lower case, and without the scheme's own port"
            )


def _check_console(name: str, value: str) -> None:
    if value not in CONSOLES:
        raise InvalidConfig(f"{name} must be one of {', '.join(CONSOLES)}, not {value!r}")


def _check_switch(name: str, value: str) -> None:
    if value not in ("off", "on"):
        raise InvalidConfig(f"{name} must be on or off, not {value!r}")


def _check_rack(name: str, value: str) -> None:
    if value:
        check_rack(value)


def _check_networks(name: str, value: str) -> None:
    for network in words(value):
        try:
            ip_network(network)
        except ValueError as error:
            raise InvalidConfig(f"{name}: {network!r} is no address and no network like 10.0.0.0/8: {error}") from error


def words(text: str) -> tuple[str, ...]:
    """Return the words of a list that commas separate."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of one gateway. Sizes are in bytes, times in milliseconds unless the name ends with `_s`."""

    host: str = _text("127.0.0.1", "Address to listen on.")
    port: int = _number(8080, "Port to listen on; 0 takes a free one.", 0, 65535)
    admin_port: int | None = _number(
        None,
        "Port of /metrics, /livez and /readyz, on admin_host; 0 takes a free one. Not set: none is opened.",
        0,
        65535,
    )
    admin_host: str = _text("127.0.0.1", "Address of the admin port.")
    hosts: str = _text(
        "",
        "Names by which requests may reach this gateway (their Host header), with commas between. Needed where brokers"
        " are open to every caller: otherwise any web page reaches them through a browser on this network.",
    )
    cors_origins: str = _text(
        "", "Origins of web pages of other hosts that may call this gateway, with commas between.", _check_origins
    )
    console: str = _text(
        "off",
        "Whether /console serves the operator's pages: off, read (they change nothing), or write.",
        _check_console,
    )
    public_urls: str = _text(
        "",
        "Origins by which browsers reach this gateway, like https://mq.example.com, with commas between. The console"
        " needs them unless the gateway listens on this machine only.",
        _check_origins,
    )
    console_key_file: str = _text(
        "",
        "Key that seals the console's cookies, 32 random bytes or 64 hexadecimal digits, the same for all gateways. Not"
        " set: a new one at each start, so that browsers sign in again.",
    )
    http_cert_file: str = _text("", "Certificate chain (PEM) of the HTTP port. Not set: plain HTTP.")
    http_key_file: str = _text("", "Private key (PEM) of the HTTP port.")
    tracing: str = _text(
        "off",
        "on: record spans of requests whose traces are recorded, and carry the trace in records (docs/tracing.md). They"
        " go to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names; needs ledgermq[otlp].",
        _check_switch,
    )
    rack: str = _text(
        "",
        "Rack or availability zone in which the gateway runs, as `rack` of brokers. Records without a key, and bundles"
        " that it uses, then stay there where they can. Not set: it says none.",
        _check_rack,
    )
    trusted_proxies: str = _text(
        "",
        "Addresses or networks of the proxies in front, like 10.0.0.0/8, with commas between. Their X-Forwarded-For"
        " says where a request comes from, and their requests continue the trace that they name; those from elsewhere"
        " begin another one, with a link.",
        _check_networks,
    )
    delegate_token_file: str = _text(
        "",
        "File with a token of this gateway, which lets brokers believe it where a call comes from (their setting"
        " delegates). No call is made by its rights. Not set: the gateway's certificate counts, if it has one.",
    )
    memory_bytes: int = _number(
        512 * MIB, "Memory for bodies, decoded records, pages and streams; beyond it calls get 503.", MIB
    )
    body_bytes_max: int = _number(16 * MIB, "Largest body of a request, after decompression.", 1, 31 * MIB)
    records_max: int = _number(10_000, "Most records of one request, and of one page.", 1, 100_000)
    page_bytes_max: int = _number(8 * MIB, "Bytes of records of one page; one record may be larger.", 1, 31 * MIB)
    header_timeout_ms: int = _number(
        10_000, "Longest time until the header of a connection's first request is here, with the handshake of TLS.", 1
    )
    body_timeout_ms: int = _number(30_000, "Longest time until the body of a request is here.", 1)
    keepalive_ms: int = _number(75_000, "How long an idle connection stays open; more than load balancers wait.", 1)
    write_timeout_ms: int = _number(30_000, "A reader that takes nothing for so long loses its connection.", 1)
    wait_ms_max: int = _number(50_000, "Longest wait that a request may ask for.", 0, 600_000)
    delivery_timeout_ms: int = _number(10_000, "Longest time of a call until its records are stored; then it fails.", 1)
    connections_max: int = _number(
        2_000,
        "Most connections at a time, and at most half of the files that the process may open. A host may have as many"
        " as are free: one alone half. A further one takes the place of its idlest one.",
        1,
    )
    calls_max: int = _number(
        512,
        "Most requests under way at a time, without event streams and waiting reads. A principal may have as many as"
        " are free: one alone half. Others wait for their turn, and get 503 after 10 s.",
        2,
    )
    streams_max: int = _number(400, "Most event streams and waiting reads at a time.", 1)
    streams_per_principal_max: int = _number(20, "Most event streams and waiting reads of one principal.", 1)
    callers_max: int = _number(1_000, "Most credentials that the gateway serves at a time.", 1)
    callers_per_principal_max: int = _number(8, "Most credentials of one principal that it serves at a time.", 1)
    caller_idle_ms: int = _number(
        60_000, "A credential without calls for so long is forgotten, and its producer closed.", 1
    )
    keys_per_second_max: int = _number(
        50, "Records with an idempotency key that one principal may send in a second.", 1
    )
    transactions_per_second_max: int = _number(5, "Transactions that one principal may send in a second.", 1)
    transaction_kept_ms: int = _number(
        3_600_000,
        "How long the cluster knows a transaction, and recognizes its idempotency key, after its last use.",
        60_000,
        7 * 24 * 3_600_000,
    )
    drain_ms: int = _number(
        8_000, "On stop: how long new requests are still taken, while load balancers learn of it.", 0
    )
    streams_end_ms: int = _number(
        10_000, "On stop: over how long a time event streams end, so that their readers do not return together.", 0
    )
    shutdown_ms: int = _number(15_000, "On stop: how long calls under way may still take.", 0)

    def __post_init__(self) -> None:
        check_fields(self)
        if bool(self.http_cert_file) != bool(self.http_key_file):
            raise InvalidConfig("give http_cert_file and http_key_file, or neither")
        if self.console != "off":
            _check_reached(self)


def _check_reached(settings: GatewaySettings) -> None:
    """Check that browsers keep the console's cookie, and that only its own pages count."""
    if not settings.public_urls and not _is_loopback(settings.host):
        raise InvalidConfig(
            "console needs public_urls, by which browsers reach this gateway: --public-urls https://mq.example.com"
        )
    for url in words(settings.public_urls):
        if not url.startswith("https://") and _name_of(url) not in LOOPBACK:
            raise InvalidConfig(f"public_urls: {url} must be https, or browsers keep no cookie of the console")


def hosts_of(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the names by which requests may reach the gateway; none: all."""
    given = words(settings.hosts)
    if settings.console == "off":
        return given
    public = tuple(map(_name_of, words(settings.public_urls)))
    if given:
        return (*given, *public)
    return (*public, *LOOPBACK) if _is_loopback(settings.host) else public


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")


def _name_of(url: str) -> str:
    host = url.partition("://")[2].lower()
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
