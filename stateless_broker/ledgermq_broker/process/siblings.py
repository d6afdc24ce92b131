"""Decide how several broker processes of one command differ, and when one that has ended restarts.
Pure: it starts nothing.

Each process has its own port, counted up from the given one (0: a free one each). The same holds
for its admin port and its addresses. Each has its own id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ledgermq.errors import InvalidConfig
from ledgermq_broker.settings.brokers import BrokerSettings

PORT_MAX = 65535
PAUSE_S_FIRST, PAUSE_S_MAX = 0.5, 30.0
"""No jitter: the log says when a process begins again, and the broker in it waits at random itself."""
STEADY_S = 60.0
"""A process that ran at least this long ended for a new reason."""


def shares(settings: BrokerSettings, processes: int) -> list[dict[str, Any]]:
    """Return for each process the settings in which it differs.

    Raises InvalidConfig if two would get the same port, or one none.
    """
    port, admin_port = settings.port, settings.admin_port
    for name, first in (("port", port), ("admin_port", admin_port), ("kafka_port", settings.kafka_port)):
        if first and first + processes - 1 > PORT_MAX:
            raise InvalidConfig(
                f"{processes} processes from {name} {first} on need port {first + processes - 1}; the largest port is"
                f" {PORT_MAX}"
            )
    if port and admin_port and abs(port - admin_port) < processes:
        raise InvalidConfig(
            f"{processes} processes take {processes} ports in a row: port {port} and admin_port {admin_port} are too"
            f" near, {port} and {port + processes} would do"
        )
    kafka_port = settings.kafka_port
    for name, other in (("port", port), ("admin_port", admin_port)):
        if kafka_port and other and abs(kafka_port - other) < processes:
            raise InvalidConfig(
                f"{processes} processes take {processes} ports in a row: {name} {other} and kafka_port {kafka_port} are"
                " too near"
            )
    if settings.kafka_advertised_address is not None and kafka_port == 0:
        raise InvalidConfig(
            "kafka_advertised_address counts up from process to process as kafka_port does; port 0 does not"
        )
    for name, address in (("advertised_address", settings.advertised_address), ("peer_address", settings.peer_address)):
        if address is not None and settings.port == 0:
            raise InvalidConfig(f"{name} counts up from process to process as port does; port 0 does not")
    return [_share(settings, number) for number in range(processes)]


def _share(settings: BrokerSettings, number: int) -> dict[str, Any]:
    own: dict[str, Any] = {"port": settings.port + number if settings.port else 0}
    if settings.admin_port is not None:
        own["admin_port"] = settings.admin_port + number if settings.admin_port else 0
    if settings.broker_id is not None:
        own["broker_id"] = f"{settings.broker_id}-{number}"
    if settings.kafka_port is not None:
        own["kafka_port"] = settings.kafka_port + number if settings.kafka_port else 0
    for name in ("advertised_address", "peer_address", "kafka_advertised_address"):
        if (address := getattr(settings, name)) is not None:
            own[name] = _counted_up(name, address, number)
    return own


def _counted_up(name: str, address: str, number: int) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise InvalidConfig(f"{name} is host:port, not {address!r}")
    return f"{host}:{int(port) + number}"


def arguments(flags: Mapping[str, Any]) -> list[str]:
    """Return settings by name as options of the command line; None = not given."""
    given = {f"{name.replace('_', '-')}": value for name, value in flags.items() if value is not None}
    return [
        ("--" if value else "--no-") + name if isinstance(value, bool) else f"--{name}={value}"
        for name, value in given.items()
    ]


def pause_s(ends_in_a_row: int) -> float:
    """Return the pause before an ended process restarts: it doubles with each end after a short
    run, up to a bound.
    """
    return float(min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(ends_in_a_row - 1, 20)))


def ends_in_a_row(before: int, ran_s: float) -> int:
    """Return the number of ends in a row, including the process that has just ended after `ran_s`
    seconds.
    """
    return 1 if ran_s >= STEADY_S else before + 1


def exit_code(codes: Iterable[int]) -> int:
    """Return the exit code of the command from those of its processes: the largest; a signal counts
    as in shells.
    """
    return max((code if code >= 0 else 128 - code for code in codes), default=0)
