"""ledgermq/client/setting_types.py: the settings of the SDK as types of keyword arguments, so that type
checkers and editors know them. It is made from the classes that declare them:
`python -m infra.setting_types > ledgermq/client/setting_types.py` (`make pages`).
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from ledgermq.client.groups.handlers.handler import HandlerSettings
from ledgermq.client.queues.runner import QueueHandlerSettings
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.values import (
    ClientSettings,
    ConsumerSettings,
    GroupSettings,
    QueueSettings,
    TableSettings,
)

CLONE = Path(__file__).parents[1]
START = ("ledgermq.client.consuming.start", "Start")
RULE = ("ledgermq.client.groups.assignment", "GivenRule")
OF_VALUES = re.compile(r"\b(FromBytes|ToBytes|OnFailure|OnQueueFailure)\b")
"""Types of settings that are about the values which the deserializer gives, or the serializer takes."""
RETRY = ("ledgermq.client.groups.handlers.retry", "Retry")


@dataclass(frozen=True)
class Options:
    """`own`: arguments that no class declares, as (name, module and type)."""

    name: str
    text: str
    kinds: tuple[type, ...]
    own: tuple[tuple[str, tuple[str, str]], ...] = ()
    without: tuple[str, ...] = ()
    parameter: str = ""
    """The parameter for the type of values: V, which the deserializer gives, or S, which the serializer takes."""


ALL = (
    Options("ClientOptions", "Arguments of `connect`.", (ClientSettings,)),
    Options(
        "ProducerOptions", "Arguments of `Client.producer` and of transactions.", (ProducerSettings,), parameter="S"
    ),
    Options("ConsumerOptions", "Arguments of `Client.consumer` without a group.", (ConsumerSettings,), parameter="V"),
    Options(
        "MemberOptions",
        "Arguments of `Client.consumer` with a group.",
        (GroupSettings,),
        (("retry", RETRY),),
        parameter="V",
    ),
    Options("TableOptions", "Arguments of `Client.table`.", (TableSettings,), parameter="V"),
    Options("QueueOptions", "Arguments of `Client.queue`.", (QueueSettings,), parameter="V"),
    Options(
        "HandlerOptions",
        "Arguments of `Client.handler`.",
        (HandlerSettings, GroupSettings),
        (("start", RULE),),
        ("topics", "group", "consumer"),
        parameter="V",
    ),
    Options(
        "QueueHandlerOptions",
        "Arguments of `Client.queue_handler`.",
        (QueueHandlerSettings, QueueSettings),
        (("start", START),),
        ("topics", "group", "queue"),
        parameter="V",
    ),
)


def page() -> str:
    """Return the module."""
    imports: dict[str, set[str]] = {}
    classes = []
    for options in ALL:
        lines = []
        for name, text, used in _declared(options):
            typed = OF_VALUES.sub(rf"\1[{options.parameter}]", text) if options.parameter else text
            lines.append(f"    {name}: {typed}")
            for module, imported in used:
                imports.setdefault(module, set()).add(imported)
        bases = f"TypedDict, Generic[{options.parameter}]" if options.parameter else "TypedDict"
        head = f"class {options.name}({bases}, total=False):"
        classes.append("\n".join([head, f'    """{options.text}"""', "", *lines]))
    standard = {module: names for module, names in imports.items() if module.split(".")[0] in sys.stdlib_module_names}
    typing = standard.pop("typing", set()) | {"TYPE_CHECKING", "Generic", "TypedDict"}
    own = {module: names for module, names in imports.items() if module not in (*standard, "typing")}
    top = [
        '"""Settings of the SDK as types of keyword arguments, made by infra/setting_types.py: do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        *_import_lines({"typing": typing}),
        "",
        "from ledgermq.client.settings.serializers import S, V",
        "",
        "if TYPE_CHECKING:",
        *(f"    {line}" for line in _import_lines(standard)),
        "",
        *(f"    {line}" for line in _import_lines(own)),
    ]
    return "\n".join(top) + "\n\n\n" + "\n\n\n".join(classes) + "\n"


def _import_lines(imports: dict[str, set[str]]) -> Iterator[str]:
    for module, names in sorted(imports.items()):
        yield f"from {module} import {', '.join(sorted(names, key=_order))}"


def _order(name: str) -> tuple[int, str]:
    """Order names as ruff does: constants, classes, others."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _declared(options: Options) -> Iterator[tuple[str, str, Iterable[tuple[str, str]]]]:
    """Yield name, annotation and the names that it uses, with their modules."""
    seen = {*options.without}
    for kind in options.kinds:
        found = dict(_annotations(kind))
        for field in fields(kind):
            if field.name not in seen:
                seen.add(field.name)
                yield field.name, *found[field.name]
    for name, (module, imported) in options.own:
        yield name, f"{imported} | None" if name == "retry" else imported, [(module, imported)]


def _annotations(kind: type) -> Iterator[tuple[str, tuple[str, list[tuple[str, str]]]]]:
    for base in kind.__mro__[:-1]:
        module = sys.modules[base.__module__]
        tree = ast.parse(inspect.getsource(module))
        imported = {
            alias.asname or alias.name: str(node.module)
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        [declared] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == base.__name__]
        for node in declared.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names = [each.id for each in ast.walk(node.annotation) if isinstance(each, ast.Name)]
                used = [(imported.get(name, base.__module__), name) for name in names if not hasattr(builtins, name)]
                yield node.target.id, (ast.unparse(node.annotation).replace("'", '"'), used)


def formatted() -> str:
    """Return the module as ruff formats it."""
    return _ruff(_ruff(page(), "check", "--select", "I", "--fix"), "format")


def _ruff(text: str, *command: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    options = ["-q", "--stdin-filename", "ledgermq/client/setting_types.py", "-"]
    done = subprocess.run([ruff, *command, *options], input=text, capture_output=True, text=True, check=True, cwd=CLONE)
    return done.stdout


if __name__ == "__main__":
    print(formatted(), end="")
