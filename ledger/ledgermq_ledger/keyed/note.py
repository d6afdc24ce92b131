"""Encode and decode the note in the footer of a version's file: JSON under the key "ledgermq", with
room for the checksums.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ledgermq_ledger.parquet.files.footer_checksum import BLANK

_METADATA_KEY = b"ledgermq"
KIND = "keyed"


@dataclass(frozen=True, slots=True)
class KeyedNote:
    """`number`: that of the version for which the file was made; later versions may name the file
    too.
    """

    cluster: str
    topic_id: int
    partition: int
    first: int
    last: int
    number: int
    attempt: str
    rows: int
    tombstones: int
    timestamp_min_us: int
    timestamp_max_us: int

    def encode(self) -> dict[bytes, bytes]:
        found = {name: getattr(self, name) for name in self.__slots__}
        marks = {"format": 1, "kind": KIND, "checksum": BLANK, "body_checksum": BLANK}
        return {_METADATA_KEY: json.dumps({**marks, **found}, sort_keys=True).encode()}

    @classmethod
    def decode(cls, metadata: dict[bytes, bytes] | None) -> KeyedNote | None:
        """Return the note; None if it is not a file of a version, or of a later format."""
        try:
            found: Any = json.loads((metadata or {})[_METADATA_KEY])
            if found["format"] != 1 or found["kind"] != KIND:
                return None
            return cls(**{name: found[name] for name in cls.__slots__})
        except (KeyError, ValueError, TypeError, RecursionError):
            return None
