"""What the options of source and sink have in common: names as Spark hands them over, in any case,
with some of its own among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean


def known_options(given: Mapping[str, str], names: Sequence[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Values by the names as they are written in `names`; without those of `ignored`, which are in
    lower case.

    Raises InvalidConfig, with the nearest name.
    """
    known = {name.lower(): name for name in names}
    values: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in known:
            values[known[name.lower()]] = value
        elif name.lower() not in ignored:
            raise InvalidConfig(f"unknown option {name!r}; {did_you_mean(name, names)}")
    return values


def check_servers(servers: str) -> None:
    """Raises InvalidConfig: a root URL would be a broker of this very process."""
    if "://" in servers:
        raise InvalidConfig(
            f"servers are addresses of brokers, host:port with commas between them, not {servers!r}; a URL is for root"
        )
