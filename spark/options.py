"""Parse what the options of source and sink have in common: names in any case, mixed with Spark's
own options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ledgermq.errors import InvalidConfig
from ledgermq.hints import did_you_mean


def known_options(given: Mapping[str, str], names: Sequence[str], ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return values by the names as they are written in `names`, without those of `ignored`, which
    are in lower case.

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
    """Check the addresses of brokers. Raises InvalidConfig for a root URL, which would start a
    broker in this process.
    """
    if "://" in servers:
        raise InvalidConfig(
            f"servers are addresses of brokers, host:port with commas between them, not {servers!r}; a URL is for root"
        )
