"""Check keys, prefixes and fence names; the rules are the same for every backend.

Invariant: an accepted name is a relative path that cannot leave the root, on any file system. Two
kinds of names are special. A part that starts with "." hides an object from `list` (probes,
temporary files). Objects under ``parquet/_tmp/`` belong to the stores themselves (fences), so no
put may name one. Knows no backend.
"""

from __future__ import annotations

import re

from ledgermq.errors import InvalidRequest
from ledgermq_ledger.object_store.contract import FENCES

KEY_LENGTH_MAX = 900
"""In bytes; S3 allows 1024 for key and prefix together."""
TEMPORARY = ".tmp"
"""Folder at the root in which the file store writes files that are not whole yet."""

_NO_DOTS = r"(?!\.\.?(?:/|\Z))"
_KEY = re.compile(rf"{_NO_DOTS}[A-Za-z0-9._=-]+(?:/{_NO_DOTS}[A-Za-z0-9._=-]+)*\Z")
_PREFIX = re.compile(rf"(?:{_NO_DOTS}[A-Za-z0-9._=-]+/)*{_NO_DOTS}[A-Za-z0-9._=-]*\Z")
_OWN = (FENCES, TEMPORARY + "/")


def check_key(key: str) -> str:
    """Return a key that may be read, put and deleted. Raises InvalidRequest."""
    if len(key) > KEY_LENGTH_MAX or not _KEY.match(key):
        raise InvalidRequest(
            f"object key {key!r} has to be parts of letters, digits, '.', '_', '=' and '-', joined by '/'"
        )
    if key.startswith(_OWN):
        raise InvalidRequest(f"object key {key!r} is reserved for the store itself")
    return key


def check_prefix(prefix: str) -> str:
    """Return a prefix for `list`: the beginning of a key. Raises InvalidRequest."""
    if not _PREFIX.match(prefix):
        raise InvalidRequest(f"{prefix!r} is not the beginning of an object key")
    return prefix


def check_fence(fence: str) -> str:
    """Return a fence name: one path part, not hidden. Raises InvalidRequest."""
    if "/" in fence or fence.startswith(".") or len(fence) > 200 or not _KEY.match(fence):
        raise InvalidRequest(f"fence name {fence!r} has to be one path part that does not begin with '.'")
    return fence


def is_shown(key: str) -> bool:
    """Return True if `list` shows the object: no part is hidden, and it is not one of the stores'
    own.
    """
    return not key.startswith((".", FENCES)) and "/." not in key
