"""Rules of the SDK's settings, declared beside each default, and the check of all of them.

    timeout_s: float = above_zero(30.0)
    acks: Literal["durable", "received"] = "durable"

A field whose type is a `Literal` accepts its choices. `check_fields` is called in `__post_init__`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field, fields
from functools import cache
from math import inf
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from ledgermq.errors import InvalidConfig
from ledgermq.filters.filter import parse_filter

Check = Callable[[str, Any], None]
"""A rule, called with (name, value). Raises InvalidConfig, naming both."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _above_zero(name: str, value: Any) -> None:
    if not _is_number(value) or not value > 0:
        raise InvalidConfig(f"{name} must be a number above 0, not {value!r}")


def check_between(name: str, value: Any, least: float, most: float) -> None:
    """Check the bounds of a number. Raises InvalidConfig."""
    if not _is_number(value) or not least <= value <= most:
        raise InvalidConfig(f"{name} must be a number from {least} to {most}, not {value!r}")


def above_zero(default: float | None, most: float = inf) -> Any:
    """Declare a number above 0, at most `most`; None is accepted where it is the default."""

    def check(name: str, value: Any) -> None:
        _above_zero(name, value)
        if value > most:
            raise InvalidConfig(f"{name} must be at most {most}, not {value!r}")

    return _declared(default, check)


def between(default: float | None, least: float, most: float) -> Any:
    """Declare a number from `least` to `most`; None is accepted where it is the default."""
    return _declared(default, lambda name, value: check_between(name, value, least, most))


def whole(default: int | None, most: int) -> Any:
    """Declare a whole number from 1 to `most`; None is accepted where it is the default."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise InvalidConfig(f"{name} must be a whole number from 1 to {most}, not {value!r}")

    return _declared(default, check)


def text(chars_max: int) -> Any:
    """Declare a text that may be empty, which is its default."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or len(value) > chars_max:
            raise InvalidConfig(f"{name} must be text of at most {chars_max} characters, not {value!r}")

    return _declared("", check)


def secret() -> Any:
    """Declare a text that is shown nowhere: neither in errors nor in the settings' own text."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidConfig(f"{name} must be text, not a {type(value).__name__}")

    return field(default="", repr=False, metadata={"check": check})


def place() -> Any:
    """Declare the URL of a folder, of files or of an HTTP server; empty unless it is set."""
    return _declared("", check_place)


def check_place(name: str, value: Any) -> None:
    """Check a URL. Raises InvalidConfig."""
    if value != "" and not _is_place(value):
        raise InvalidConfig(f"{name} must be empty or a URL like file:///folder or https://host/folder, not {value!r}")


def _is_place(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    known = (parts.scheme, bool(parts.netloc)) in {("file", False), ("http", True), ("https", True)}
    return known and not (parts.query or parts.fragment)


def filtering() -> Any:
    """Declare a filter (`ledgermq.filters.filter`); empty unless it is set. Raises InvalidFilter where it is wrong."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise InvalidConfig(f'{name} must be text like "TagA || TagB" or "price > 5", not {value!r}')
        parse_filter(value)

    return _declared("", check)


def switch(default: bool) -> Any:
    """Declare a setting that is True or False."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, bool):
            raise InvalidConfig(f"{name} must be True or False, not {value!r}")

    return _declared(default, check)


def function(of: str) -> Any:
    """Declare a function. `of` lists its parameters, for error messages. Default: None."""

    def check(name: str, value: Any) -> None:
        if not callable(value):
            raise InvalidConfig(f"{name} must be a function of {of}, not {value!r}")

    return _declared(None, check)


def having(*methods: str) -> Any:
    """Declare an object with these methods. Default: None."""

    def check(name: str, value: Any) -> None:
        missing = [method for method in methods if not callable(getattr(value, method, None))]
        if missing:
            raise InvalidConfig(f"{name} must be an object with the methods {', '.join(methods)}, not {value!r}")

    return _declared(None, check)


def functions(of: str) -> Any:
    """Declare a list of functions, called one after the other. `of` describes their parameter. Default: none."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, Sequence) or not all(map(callable, value)):
            raise InvalidConfig(f"{name} must be a list of functions of {of}, not {value!r}")

    return _declared((), check)


def checked(default: Any, check: Check, help_text: str = "") -> Any:
    """Declare a setting with its own rule; None is accepted where it is the default. `help_text`: for settings that
    are options of a command, too; those of the SDK have it below the field.
    """
    return _declared(default, check, help_text)


def _declared(default: Any, check: Check, help_text: str = "") -> Any:
    return field(default=default, metadata={"check": check, "help": help_text})


def check_fields(settings: Any) -> None:
    """Check every field of a settings dataclass by its rule. Raises InvalidConfig."""
    choices = _choices(cast(Hashable, type(settings)))
    for each in fields(settings):
        value = getattr(settings, each.name)
        check = each.metadata.get("check")
        if check is not None and not (value is None and each.default is None):
            check(each.name, value)
        if each.name in choices and value not in choices[each.name]:
            raise InvalidConfig(f"{each.name} must be one of {', '.join(choices[each.name])}, not {value!r}")


@cache
def _choices(kind: Any) -> dict[str, tuple[Any, ...]]:
    return {name: get_args(hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
