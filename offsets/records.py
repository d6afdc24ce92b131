"""The records of `__consumer_offsets`: typed keys and values, and their bytes.

    key                                       value
    floor                                     Floor    highest epoch of any deleted group
    group/<group>                             Group    its epoch, since when it is empty
    member/<group>/<member id>                Member   its subscription, and what it holds under which epochs
    offset/<group>/<topic id>/<partition>     Offset   what is committed

No value: the key is deleted. Names hold no "/", so keys need no escapes. Values are compared as values: equal ones have equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogRecord:
    """`value` None: a tombstone."""

    key: bytes
    value: bytes | None
