"""Parameters of queries that several resources have."""

from __future__ import annotations

from binascii import Error as NoBase64
from binascii import a2b_base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ledgermq.client.consuming.start import Position, check_position
from ledgermq.client.messages.record import datetime_of
from ledgermq.errors import InvalidConfig
from ledgermq_gateway.api.route import Parameter
from ledgermq_gateway.http.call import Call
from ledgermq_gateway.http.problems import Problem

POSITION_HELP = "earliest, latest, an offset, a time with its zone (RFC 3339), or an age like 15m."

CURSOR = {"type": "string", "maxLength": 4096, "pattern": r"^c1\.[A-Za-z0-9_-]+$"}


def whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return a whole number. Raises Problem (400)."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise Problem("INVALID_REQUEST", f"the parameter {name} is a whole number from {least} to {most}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Problem("INVALID_REQUEST", f"the parameter {name} is true or false")
    return text == "true"


def choice(query: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return one of `choices`; the first one is the default. Raises Problem (400)."""
    text = query.get(name, choices[0])
    if text not in choices:
        raise Problem("INVALID_REQUEST", f"the parameter {name} is one of {', '.join(choices)}")
    return text


def position(call: Call, name: str, default: str | None) -> Position:
    """Return a place in a log. An age counts back from now, by the brokers' time. Raises Problem (400)."""
    text = call.query.get(name, default)
    if text is None:
        raise Problem("INVALID_REQUEST", f"the parameter {name} is missing: {POSITION_HELP}")
    return position_of(name, text, call.service.sources.now_us())


def position_of(name: str, text: str, now_us: int) -> Position:
    wanted: object = text
    if text.isascii() and text.isdecimal() and len(text) < 20:
        wanted = int(text)
    elif "T" in text or " " in text:
        try:
            wanted = datetime.fromisoformat(text.replace(" ", "+"))  # a plus that was not escaped
        except ValueError:
            wanted = text
    try:
        return check_position(wanted, datetime_of(now_us))
    except InvalidConfig as error:
        raise Problem("INVALID_REQUEST", f"the parameter {name}: {error.message}") from None


def text_bytes(query: Mapping[str, str], name: str) -> bytes | None:
    """Return bytes that are given as text or, as `<name>_base64`, in base64; None: neither. Raises Problem (400)."""
    coded = query.get(f"{name}_base64")
    coded = coded and coded.replace(" ", "+")  # a plus that was not escaped
    return bytes_of(name, query.get(name), coded, what="the parameter ")


def bytes_of(name: str, given: str | None, coded: str | None, *, what: str = "") -> bytes | None:
    """Return bytes that are given as text or in base64; None: neither. Raises Problem (400)."""
    if coded is None:
        return None if given is None else given.encode()
    if given is not None:
        raise Problem("INVALID_REQUEST", f"give either {name} or {name}_base64")
    try:
        return a2b_base64(coded, strict_mode=True)
    except (NoBase64, ValueError):
        raise Problem("INVALID_REQUEST", f"{what}{name}_base64 is not base64") from None


def number(name: str, help_text: str, least: int, most: int, default: int | None = None) -> Parameter:
    schema: dict[str, Any] = {"type": "integer", "minimum": least, "maximum": most}
    if default is not None:
        schema["default"] = default
    return Parameter(name, help_text, schema)


def text(name: str, help_text: str, **more: Any) -> Parameter:
    return Parameter(name, help_text, {"type": "string"} | more)


def chosen(name: str, help_text: str, choices: tuple[str, ...]) -> Parameter:
    return Parameter(name, help_text, {"type": "string", "enum": list(choices), "default": choices[0]})


def switch(name: str, help_text: str) -> Parameter:
    return Parameter(name, help_text, {"type": "boolean", "default": False})
