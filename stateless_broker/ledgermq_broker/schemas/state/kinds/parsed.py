"""A schema that was read and found right, as values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ledgermq_ledger.schemas.fields import Field


@dataclass(frozen=True, slots=True)
class Parsed:
    """`text`: as it is stored. `plain`: the same without its spacing, by which texts are equal. `fields`: without the
    root. `model`: what the module of the kind compares.
    """

    kind: str
    text: str
    plain: str
    fields: tuple[Field, ...]
    model: Any

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.kind}\n{self.plain}".encode()).digest()
