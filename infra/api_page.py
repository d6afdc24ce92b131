"""docs/api.md: the public API of the package, from its docstrings, so that the page cannot be
outdated.

    python -m infra.api_page > docs/api.md

Two libraries were compared. pdoc writes HTML only, and griffe reads sources without importing them
but leaves Markdown to mkdocstrings, a plugin of a site generator. The package can be imported here,
so `inspect` has signatures and docstrings, and the page stays one file that GitHub shows.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

import ledgermq
import ledgermq.sync
from infra.internal_names import INTERNAL
from ledgermq import errors

COLUMNS = 100
INTRODUCTION = """\
# Python API

This page is made by `make pages` from the docstrings; a test holds it to the code. Start with the
[README](../README.md#from-python) or the [tutorial](tutorial.md). Keyword arguments called
`**settings` are listed in [settings](settings.md#clients).
"""
OF_SYNC = """\
## ledgermq.sync

`with ledgermq.sync.connect("localhost:9650") as client:` is the same API without asyncio. Calls
block, and objects have the names of the asynchronous ones. What differs: `client.listen(…)` runs
handlers in threads. [The Python client](python.md) says which thread may call what.
"""
OF_ERRORS = """\
## ledgermq.errors

Every error of the client is a `LedgerMQError`. An error is *retriable* when the same call may
succeed later.
"""


def page() -> str:
    parts = [INTRODUCTION]
    for name in ledgermq.__all__:
        if name not in ("__version__", "errors", "sync"):
            parts += _of(f"ledgermq.{name}", getattr(ledgermq, name))
    parts += [OF_SYNC]
    for name in sorted(ledgermq.sync.__all__):
        given = getattr(ledgermq.sync, name)
        if inspect.isclass(given):
            parts += [f"### ledgermq.sync.{name}\n", _text(given), _names_of(given, getattr(ledgermq, name, given))]
    parts += [OF_ERRORS, *_errors()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(part for part in parts if part)).rstrip() + "\n"


def _of(name: str, given: Any) -> Iterator[str]:
    yield f"## {name}\n"
    if not inspect.isclass(given):
        yield from (_signature(given.__name__, given), _text(given))
        return
    yield _text(given)
    yield _attributes(given)
    for member, function in _functions(given):
        if isinstance(function, property):
            yield f"### {given.__name__}.{member}\n"
            yield f"Property{_returned(function)}.\n"
            yield _text(function)
        else:
            yield f"### {given.__name__}.{member}\n"
            yield _signature(member, function)
            yield _text(function)


def _functions(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the public functions and properties that a class of this package defines or inherits."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("ledgermq"):
            continue
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if (name.startswith("_") and name != "__call__") or name in seen or f"{kind.__name__}.{name}" in INTERNAL:
                continue
            if isinstance(plain, FunctionType | property):
                seen.add(name)
                yield name, plain


def _names_of(kind: type, asynchronous: type) -> str:
    """Return the names in the order of the asynchronous class; then come those that it does not have."""
    order = [name for name, _ in _functions(asynchronous)]
    found = sorted(
        (name for name, _ in _functions(kind)), key=lambda name: (name not in order, [*order, name].index(name))
    )
    names = ", ".join(f"`{name}`" for name in found)
    return f"{textwrap.fill(names, COLUMNS)}\n" if names else ""


def _attributes(kind: type) -> str:
    """Return a table of a value's fields, and of documented attributes that `__init__` sets."""
    rows: list[tuple[str, str, str]] = []
    if is_dataclass(kind):
        rows += [(field.name, str(field.type), "") for field in fields(kind) if not field.name.startswith("_")]
    elif hasattr(kind, "_fields"):
        annotations = inspect.get_annotations(kind)
        rows += [(name, _annotation(annotations.get(name, "")), "") for name in kind._fields]
    rows += [row for base in kind.__mro__ if base.__module__.startswith("ledgermq") for row in _set_by_init(base)]
    if not rows:
        return ""
    lines = ["| attribute | type | |", "|---|---|---|"]
    lines += [f"| `{name}` | {_cell(kind_of)} | {_escaped(text)} |" for name, kind_of, text in rows]
    return "\n".join(lines) + "\n"


def _annotation(given: Any) -> str:
    """Fields of a NamedTuple have their annotations as a ForwardRef."""
    return str(getattr(given, "__forward_arg__", given))


def _cell(text: str) -> str:
    return f"`{_escaped(text)}`" if text else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _set_by_init(kind: type) -> list[tuple[str, str, str]]:
    """`self.name = …` with a string below it."""
    init = vars(kind).get("__init__")
    if not isinstance(init, FunctionType) or init.__code__.co_filename.startswith("<"):
        return []
    [function] = ast.parse(textwrap.dedent(inspect.getsource(init))).body
    assert isinstance(function, ast.FunctionDef)
    found = []
    for before, after in zip(function.body, function.body[1:], strict=False):
        target = before.targets[0] if isinstance(before, ast.Assign) else None
        if (
            isinstance(target, ast.Attribute)
            and not target.attr.startswith("_")
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found.append((target.attr, "", " ".join(str(after.value.value).split())))
    return found


def _signature(name: str, function: Any) -> str:
    found = inspect.signature(function)
    parameters = [parameter for key, parameter in found.parameters.items() if key not in ("self", "cls")]
    plain = found.replace(parameters=parameters)
    if inspect.isasyncgenfunction(inspect.unwrap(function)):
        prefix = "async with "
        plain = plain.replace(return_annotation=inspect.Signature.empty)
    else:
        prefix = "await " if inspect.iscoroutinefunction(function) else ""
    one_line = prefix + name + _unquoted(str(plain))
    if len(one_line) > COLUMNS:
        shown = "".join(f"    {_unquoted(part)},\n" for part in _parts(parameters))
        back = _unquoted(str(plain.replace(parameters=[])))[2:]
        one_line = f"{prefix}{name}(\n{shown}){back}"
    return f"```\n{one_line}\n```\n"


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    named_only = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not named_only:
            named_only = True
            yield "*"
        yield str(parameter)


def _unquoted(text: str) -> str:
    """Annotations are text in these modules, which `inspect` shows in quotes."""
    return re.sub(r"((?:: |-> ))'([^']*)'", r"\1\2", text)


def _returned(function: property) -> str:
    annotation = inspect.signature(function.fget).return_annotation if function.fget else ""
    return f", `{annotation}`" if annotation and annotation is not inspect.Signature.empty else ""


def _text(given: Any) -> str:
    """Return the docstring as Markdown; a class that inherits its docstring has no own text."""
    if inspect.isclass(given) and not vars(given).get("__doc__"):
        return ""
    text = inspect.getdoc(given) or ""
    return "" if text.startswith(f"{getattr(given, '__name__', '?')}(") else text + "\n"


def _errors() -> Iterator[str]:
    yield "| error | is a | code | retriable | meaning |\n|---|---|---|---|---|"
    meanings = _meanings(errors.__doc__ or "")
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.LedgerMQError) and kind.__module__ == errors.__name__:
            base = "" if kind is errors.LedgerMQError else f"`{kind.__mro__[1].__name__}`"
            text = _escaped(meanings.get(name, ""))
            yield f"| `{name}` | {base} | `{kind.code}` | {'yes' if kind.retriable else ''} | {text} |"


def _meanings(tree: str) -> dict[str, str]:
    """Read the tree in the docstring of `ledgermq.errors`: `├── Name    meaning`."""
    return {found[1]: found[2] for found in re.finditer(r"── (\w+) {2,}(\S.*)$", tree, re.MULTILINE)}


if __name__ == "__main__":
    sys.stdout.write(page())
