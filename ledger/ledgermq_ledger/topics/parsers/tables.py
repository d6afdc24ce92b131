"""Parse the settings of Iceberg tables. Pure."""

from __future__ import annotations

import re

from ledgermq.errors import InvalidConfig

PARTITIONS_MAX = 200
"""Of a topic with an Iceberg table: each snapshot says how far each of them is registered."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z", re.ASCII)
LEVELS_MAX = 10


def catalog_name(text: str) -> str:
    """Return the name of a catalog; "": none. Raises ValueError."""
    if text and not _NAME.match(text):
        raise ValueError("a name of letters, digits, - and _ is needed, 100 at most")
    return text


def namespace(text: str) -> str:
    """Return a namespace, whose levels are separated by dots; "": none. Raises ValueError."""
    levels = text.split(".") if text else []
    if len(levels) > LEVELS_MAX or not all(_NAME.match(level) for level in levels):
        raise ValueError(f"at most {LEVELS_MAX} names of letters, digits, - and _ are needed, separated by dots")
    return text


def check_iceberg(catalog: str, within: str, partitions: int, *, keyed: bool) -> None:
    """Raise InvalidConfig if a topic with so many partitions cannot have an Iceberg table there."""
    if not catalog or not within:
        raise InvalidConfig("table.format=iceberg needs table.catalog and table.namespace, where the table is created")
    if keyed:
        raise InvalidConfig(
            "a keyed topic (cleanup.policy) can have a Delta table, and no Iceberg table: set table.format=delta"
        )
    if partitions > PARTITIONS_MAX:
        raise InvalidConfig(
            f"table.format=iceberg is for topics of {PARTITIONS_MAX} partitions at most; this one has {partitions}"
        )
