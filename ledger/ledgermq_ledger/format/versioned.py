"""Read records of `__metadata` that begin with the version of their format: of schemas, rules, tokens, quotas. Pure.

A record of a later release, or a damaged one, is `Unreadable`: what depends on it decides what that means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError

M_co = TypeVar("M_co", covariant=True)


class _Kind(Protocol[M_co]):
    @staticmethod
    def FromString(data: bytes, /) -> M_co: ...  # noqa: N802 - a name of protobuf


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record of a later release, or a damaged one."""

    why: str


def read_versioned(kind: _Kind[M_co], value: bytes, version: int, what: str) -> M_co | Unreadable:
    """Return a record of this version. `what`: what it should be, for the reason."""
    try:
        record: Any = kind.FromString(value)
    except DecodeError as error:
        return Unreadable(f"not {what}: {error}")
    if record.version != version:
        return Unreadable(f"format version {record.version}; this release reads version {version}")
    found: M_co = record
    return found
