"""Which keys, prefixes and fence names a store takes; the same for every backend.

Invariant: whatever passes here is a relative path that cannot leave the root, on any file system.
Two kinds of names are special: a part that starts with "." hides an object from `list` (probes,
temporary files), and what lies under ``parquet/_tmp/`` belongs to the stores themselves (fences),
so no put may name it. Knows no backend.
"""

from __future__ import annotations

import re

from ledger.object_store.contract import FENCES
from ledgermq.errors import InvalidRequest

KEY_LENGTH_MAX = 900
"""Bytes; S3 allows 1024 for key and prefix together."""
TEMPORARY = ".tmp"
"""Folder at the root where the file store writes what is not yet whole."""

_NO_DOTS = r"(?!\.\.?(?:/|\Z))"
_KEY = re.compile(rf"{_NO_DOTS}[A-Za-z0-9._=-]+(?:/{_NO_DOTS}[A-Za-z0-9._=-]+)*\Z")
_PREFIX = re.compile(rf"(?:{_NO_DOTS}[A-Za-z0-9._=-]+/)*{_NO_DOTS}[A-Za-z0-9._=-]*\Z")
_OWN = (FENCES, TEMPORARY + "/")


def check_key(key: str) -> str:
    """A key that may be read, put and deleted. Raises InvalidRequest."""
    if len(key) > KEY_LENGTH_MAX or not _KEY.match(key):
        raise InvalidRequest(
            f"object key {key!r} has to be parts of letters, digits, '.', '_', '=' and '-', joined by '/'"
        )
    if key.startswith(_OWN):
        raise InvalidRequest(f"object key {key!r} is reserved for the store itself")
    return key


def check_prefix(prefix: str) -> str:
    """What `list` takes: the beginning of a key. Raises InvalidRequest."""
    if not _PREFIX.match(prefix):
        raise InvalidRequest(f"{prefix!r} is not the beginning of an object key")
    return prefix


def check_fence(fence: str) -> str:
    """One path part, not hidden. Raises InvalidRequest."""
    if "/" in fence or fence.startswith(".") or len(fence) > 200 or not _KEY.match(fence):
        raise InvalidRequest(f"fence name {fence!r} has to be one path part that does not begin with '.'")
    return fence


def is_shown(key: str) -> bool:
    """Whether `list` shows the object: no part is hidden, and it is none of the stores' own."""
    return not key.startswith((".", FENCES)) and "/." not in key
