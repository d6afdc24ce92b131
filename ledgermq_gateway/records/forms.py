"""The JSON form of records that are read: that of `ledgermq.json_records`, with the value in the form that the
caller wants.

    text, auto   text where it is UTF-8, else base64
    base64       always base64
    json         the value as JSON where it is JSON, else as text
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec

from ledgermq.json_records import json_line
from ledgermq_gateway.resources.parameters import chosen

FORMS = ("auto", "text", "base64", "json")
VALUES = chosen("values", "How values come: programs should name one, auto changes with the content.", FORMS)
_NULL = b'"value":null'
_raw = msgspec.json.Decoder(msgspec.Raw)


def record_json(message: tuple[Any, ...], form: str) -> bytes:
    """Return a message as a line of JSON, without its end. `message`: topic, partition, offset, key, value, …"""
    value = message[4]
    if value is None or form in ("auto", "text"):
        return json_line(message)[:-1]
    shown = b'"value_base64":"%s"' % b64encode(value) if form == "base64" else _as_json(value)
    if shown is None:
        return json_line(message)[:-1]
    # No key can hold the pattern: quotes within text are escaped.
    return json_line((*message[:4], None, *message[5:]))[:-1].replace(_NULL, shown, 1)


def _as_json(value: bytes) -> bytes | None:
    try:
        value.decode()
        _raw.decode(value)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None
    # Line ends within JSON are only between its parts: in text they are escaped. A record is one line.
    return b'"value_json":' + value.replace(b"\n", b" ").replace(b"\r", b" ")
