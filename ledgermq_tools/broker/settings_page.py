"""Make docs/settings.md: one page of every setting, from the classes that hold them, so that the
page cannot be outdated.

python -m ledgermq_tools.broker.settings_page > docs/settings.md
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from itertools import chain
from typing import Any, get_args

from pydantic.fields import FieldInfo

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
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.declaring import ProcessSettings
from ledgermq_broker.settings.processes import LIVE, CompactionSettings
from ledgermq_ledger.topics.settings import NAMES as TOPIC_NAMES
from ledgermq_ledger.topics.settings import TopicSettings

INTRODUCTION = """\
# Settings

This page is made by `make pages`; a test holds it to the code. Units are the last word of a name.

A process takes a setting from its **flag** (`--flush-bytes 1048576`), else from its **variable**
(`LEDGERMQ_FLUSH_BYTES=1048576`), else from the **TOML file** that `--config` or `LEDGERMQ_CONFIG`
names (`flush_bytes = 1048576`), else from the default. One file serves every process of a cluster:
each takes its own settings. An unknown name is refused with an error that gives the nearest name:
in the file, among the variables that begin with `LEDGERMQ_`, and among the flags.

`ledgermq config show` prints the values in force and their sources, `ledgermq config validate FILE` checks a file.

**Live** settings change in a running process: edit the file, then send SIGHUP. A change of any
other setting is refused until a restart, and the log names it. Credentials are not settings: stores
read them from the usual places (`AWS_…`), and a root URL that contains credentials is refused.
"""
OF_BROKERS = """\
Of `ledgermq broker`, `ledgermq dev`, and an embedded broker (a client that was given a root
URL). That one has no flags, takes a free port, and never takes `broker_id`, `advertised_address`
and `peer_address`, so that a command beside a broker does not take its place. Settings that
begin with *New cluster* count only where the process is the first one at its root."""
OF_COMPACTION = "Of `ledgermq compactor`, the compaction service."
OF_TOPICS = """\
By topic, kept in the cluster: `ledgermq topic create NAME --set retention.ms=86400000`,
`ledgermq topic alter NAME --set … --unset …`. A change takes effect in every broker within seconds,
without a restart."""
OF_CLIENTS = """\
Arguments of `ledgermq.connect(…)`, `client.producer(…)` and `client.consumer(…)`. Clients read no
other variables, and nothing else from the file, than those of `tls`, `token` and `token_file`."""

_UNITS = {
    "ms": "ms",
    "s": "s",
    "bytes": "bytes",
    "slots": "segments",
    "dollars": "dollars",
    "partitions": "partitions",
    "batches": "batches",
}


def unit_of(name: str) -> str:
    """Return the unit: the last word of the name that is no bound, as `fetch_wait_ms_max` → ms. ""
    if it has none.
    """
    words = [word for word in name.replace(".", "_").split("_") if word not in ("max", "min", "first")]
    return _UNITS.get(words[-1], "") if words else ""


def page() -> str:
    parts = [
        INTRODUCTION,
        *_section("Every process", "", _process_rows(ProcessSettings, ())),
        *_section("Brokers", OF_BROKERS, _process_rows(BrokerSettings, ProcessSettings.model_fields)),
        *_section("Compaction service", OF_COMPACTION, _process_rows(CompactionSettings, ProcessSettings.model_fields)),
        *_section("Topics", OF_TOPICS, _topic_rows(), ("setting", "unit", "default", "meaning")),
    ]
    for title, text, kind, elsewhere in CLIENTS:
        parts += _section(title, text, _client_rows(kind, elsewhere), ("setting", "unit", "default", "meaning"))
    return "\n".join(parts)


def _names(kind: type) -> frozenset[str]:
    return frozenset(field.name for field in fields(kind))


CLIENTS: tuple[tuple[str, str, type, frozenset[str]], ...] = (
    ("Clients", OF_CLIENTS, ClientSettings, frozenset()),
    ("Producers", "", ProducerSettings, frozenset()),
    ("Consumers", "", ConsumerSettings, frozenset()),
    ("Tables", "`client.table(…)`: this, and those of consumers.", TableSettings, _names(ConsumerSettings)),
    (
        "Members of groups",
        "`client.consumer(…, group=…)`: these, and those of consumers.",
        GroupSettings,
        _names(ConsumerSettings),
    ),
    (
        "Handlers",
        "`client.handler(…)`: these, and those of members of groups.",
        HandlerSettings,
        frozenset({"topics", "group", "consumer"}),
    ),
    ("Members of queues", "`client.queue(…, group=…)`.", QueueSettings, frozenset()),
    (
        "Handlers of queues",
        "`client.queue_handler(…)`: these, and those of members of queues.",
        QueueHandlerSettings,
        frozenset({"topics", "group", "queue"}),
    ),
)
"""Title, text above the table, class, and which of its fields are listed elsewhere."""
COLUMNS = ("setting", "variable", "unit", "default", "range", "live", "meaning")


def _section(title: str, text: str, rows: Iterable[tuple[str, ...]], columns: tuple[str, ...] = COLUMNS) -> list[str]:
    head = [f"## {title}", ""] + ([text, ""] if text else [])
    lines = [line_of(columns), line_of(["---"] * len(columns)), *(line_of(row) for row in rows)]
    return [*head, *lines, ""]


def line_of(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _process_rows(kind: type[ProcessSettings], without: Iterable[str]) -> Iterable[tuple[str, ...]]:
    hidden = set(without)
    for name, field in kind.model_fields.items():
        if name not in hidden:
            live = "live" if name in LIVE else ""
            yield (
                f"`{name}`",
                f"`LEDGERMQ_{name.upper()}`",
                unit_of(name),
                _shown(field.default),
                range_of(field),
                live,
                field.description or "",
            )


def range_of(field: FieldInfo) -> str:
    """Return what the setting accepts, as Markdown: choices, bounds, a pattern, or "text"."""
    annotation = str(field.annotation)
    if "Literal" in annotation:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if "bool" in annotation:
        return "`true`, `false`"
    bounds: dict[str, Any] = {}
    for rule in field.metadata:
        bounds |= {name: value for name in ("ge", "le", "pattern") if (value := getattr(rule, name, None)) is not None}
    if "pattern" in bounds:
        return f"`{bounds['pattern']}`"
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']:,} to {bounds['le']:,}"
    return f"from {bounds['ge']:,}" if "ge" in bounds else "text"


def _topic_rows() -> Iterable[tuple[str, ...]]:
    for name, unit, default, meaning in _client_rows(TopicSettings, frozenset()):
        dotted = name.replace("_", ".")
        if dotted.strip("`") in TOPIC_NAMES:
            yield dotted, unit, default, meaning


def _client_rows(kind: type, elsewhere: frozenset[str]) -> Iterable[tuple[str, ...]]:
    meanings = meanings_of(kind)
    for field in fields(kind):
        if field.name in elsewhere:
            continue
        default = "" if field.default is MISSING else _shown(field.default)
        yield f"`{field.name}`", unit_of(field.name), default, meanings[field.name]


def meanings_of(kind: type) -> dict[str, str]:
    """Return the text below each field of a dataclass. A text below two fields describes both."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for statement in chain.from_iterable(_statements(each) for each in reversed(kind.__mro__) if is_dataclass(each)):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            waiting.append(statement.target.id)
        elif waiting and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found |= dict.fromkeys(waiting, " ".join(str(statement.value.value).split()))
            waiting.clear()
    return found


def _statements(kind: type) -> list[ast.stmt]:
    [body] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    return body.body


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "not set"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(page())
