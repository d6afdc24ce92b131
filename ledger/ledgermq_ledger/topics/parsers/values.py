"""Parse the texts of settings. Each function raises ValueError, which says what is allowed."""

from __future__ import annotations

from collections.abc import Callable

MILLISECONDS = "of milliseconds is needed, or a duration: 604800000 or 7d for seven days"
BYTES = "of bytes is needed, such as 134217728 for 128 MiB"


def whole(least: int, most: int, needed: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"a whole number {needed}") from None
        if not least <= value <= most:
            raise ValueError(f"it has to be from {least} to {most}")
        return value

    return parse


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("it has to be one of " + ", ".join(allowed))
        return text

    return parse


def time_to_live(text: str) -> int:
    value = whole(-1, 2**62, MILLISECONDS)(text)
    if value == 0:
        raise ValueError("with 0 no message would ever be delivered; -1 sets no time to live")
    return value


def held_bytes(text: str) -> int:
    value = whole(-1, 2**62, BYTES)(text)
    if value == 0:
        raise ValueError("with 0 the first file that retention removes would unset the table; -1 sets no bound")
    return value


def merged_files(text: str) -> int:
    value = whole(0, 10_000, "of files is needed")(text)
    if value == 1:
        raise ValueError("with 1 nothing would be merged; 0 merges none")
    return value


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ValueError("it has to be a number from 0 to 1")
    return value


def policy(text: str) -> str:
    """Accept either order, as Kafka does."""
    return one_of("delete", "compact", "compact,delete")("compact,delete" if text == "delete,compact" else text)


def truth(text: str) -> bool:
    return one_of("true", "false")(text.lower()) == "true"
