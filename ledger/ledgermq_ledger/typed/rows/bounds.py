"""What holds for a value of every kind. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from ledgermq_ledger.typed.shape import DIGITS_MAX

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
GROWTH_MAX, GROWTH_BASE = 16, 64 * 1024
"""A value may decode to so many times its bytes, and so much more: ten bytes can say that an array has 10⁹ items."""
TEXT_CHARS_MAX = 200
"""Of an error."""
ReadRow = Callable[[bytes], "dict[str, Any] | None"]
"""Returns the row of one value by names of columns. Raises ValueError, which says what is wrong with the value."""


class BadValue(ValueError):
    """`path`: where in the value, from the outside inwards."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path = ""

    def within(self, name: str) -> BadValue:
        self.path = f"{name}.{self.path}" if self.path else name
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what


def needed(what: str, wanted: str) -> BadValue:
    return BadValue(f"{what}, {'an' if wanted[0] in 'aeio' else 'a'} {wanted} is needed")


def check_int64(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise BadValue("the number does not fit into 64 bits")
    return value


def decimal_of(unscaled: int, scale: int) -> Decimal:
    if len(str(abs(unscaled))) > DIGITS_MAX:
        raise BadValue(f"the number has more than {DIGITS_MAX} digits")
    return Decimal(f"{unscaled}E{-scale}")


def text_of(value: Any) -> str:
    """Return what no column can hold as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def check_text(text: str) -> str:
    """Return a string that UTF-8 can say."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadValue("half of a surrogate pair, which is no text") from None
    return text
