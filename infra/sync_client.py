"""The calls of `ledgermq.sync` that only wait for the asynchronous ones, made from the asynchronous classes.

    python -m infra.sync_client             write them again (`make pages`)
    python -m infra.sync_client --check     print what is outdated; exit 1 if there is any

A public method that an asynchronous class gets appears in its twin by this alone. What differs is written by hand, in
the class of ledgermq.sync that inherits the generated one: batches that cross threads at once, iteration, callbacks and
handlers, and what has to happen in a certain thread. What a hand-written class defines is not generated. A method that
cannot be generated (it takes a callback, say, or an object that exists twice) is an error until it is written by hand.

Ready-made tools were compared. unasync and unasyncd turn asynchronous bodies into blocking ones: the whole client would
exist twice, and its background tasks (lingering batches, heartbeats, prefetching) need an event loop anyway.
synchronicity wraps classes when they are imported, needs generated stubs for type checkers, and is a dependency of each
program. Trio's way is taken (its gen_exports.py): modules are read, not imported, and plain functions are written that
people, type checkers and debuggers read as any others; a test fails when they are outdated.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from infra.internal_names import INTERNAL, ONLY_ASYNC
from infra.sync_methods import ClassWriter, Module, NotGenerated, Twin

CLONE = Path(__file__).parents[1]
CLIENT = "ledgermq.client"
SYNC = "ledgermq.sync"
HEAD = '"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""'

TWINS = (
    Twin(
        "ClusterAdmin",
        "admin.cluster",
        "generated.cluster",
        "The calls of a client about brokers and bundles. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "TopicAdmin",
        "admin.topic_admin",
        "generated.topics",
        "Administration of topics, as `client.topics`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "TopicNames",
        "admin.topic_admin",
        "generated.topics",
        "What a client has in short of its `topics`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "MakingProducers",
        "front.producers",
        "generated.producers",
        "The calls of a client that make producers, or send.",
        part_of="Client",
        inner=("Making",),
    ),
    Twin(
        "MakingConsumers",
        "front.consumers",
        "generated.consumers",
        "The calls of a client that make consumers, or read.",
        callbacks=("consumer",),
        part_of="Client",
        inner=("Making",),
    ),
    Twin(
        "Handling",
        "front.handling",
        "generated.handling",
        "The calls of a client that declare and run handlers.",
        direct=("handler", "queue_handler", "handlers"),
        callbacks=("handler", "queue_handler"),
        notes={
            "handler": "the function, and those of `on_failure` and `retry`, run in threads.",
            "queue_handler": "the function, and `on_failure`, run in threads.",
        },
        part_of="Client",
    ),
    Twin(
        "LookingUp",
        "front.looking_up",
        "generated.looking_up",
        "The calls of a client about single messages.",
        part_of="Client",
    ),
    Twin("Client", "client", "client"),
    Twin(
        "Access",
        "admin.access",
        "admin.access",
        "The methods of `client.access`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "Quotas",
        "admin.quotas",
        "admin.quotas",
        "The methods of `client.quotas`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "GroupAdmin",
        "groups.admin.group_admin",
        "admin.group_admin",
        "Administration of consumer groups, as `client.groups`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "QueueAdmin",
        "queues.admin",
        "generated.queues",
        "Administration of queue groups, as `client.queues`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "Schemas",
        "schemas.admin",
        "generated.schemas",
        "The methods of `client.schemas`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "TableAdmin",
        "tables.admin",
        "generated.table_admin",
        "The tables of topics, as `client.tables`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "Cuts",
        "cuts.admin",
        "generated.cuts",
        "The methods of `client.cuts`. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "DeadLetterAdmin",
        "operating.dead_letters",
        "generated.operating",
        "Dead letters of consumer groups and queue groups, as `client.dead_letters`: list, redrive, drop.",
    ),
    Twin(
        "UnresolvedAdmin",
        "operating.unresolved",
        "generated.operating",
        "Half messages whose producers never answered, as `client.unresolved`: list them, publish or drop them.",
    ),
    Twin(
        "TransactionAdmin",
        "transactions.admin",
        "transactions.transaction_admin",
        "The methods of `client.transactions` for operators. Every call ends within the client's `timeout_s`.",
    ),
    Twin(
        "TransactionClient",
        "transactions.transactions",
        "transactions.transaction_admin",
        "See `ledgermq.TransactionClient`.",
        needs_sources=True,
    ),
    Twin(
        "Transactions",
        "transactions.transactions",
        "transactions.transactions",
        attributes=("closed",),
        needs_sources=True,
    ),
    Twin(
        "Transaction",
        "transactions.transaction",
        "transactions.transactions",
        attributes=("state", "failure"),
        inner=("TransactionRecords[S]",),
        in_loop=("name",),
        has_init=False,
    ),
    Twin(
        "TwoPhase",
        "transactions.two_phase.two_phase",
        "transactions.transactions",
        attributes=("closed",),
        inner=("TransactionRecords[S]",),
        direct=("xid",),
        needs_sources=True,
        has_init=False,
    ),
    Twin(
        "HalfMessage",
        "transactions.half_messages",
        "generated.half_messages",
        "See `ledgermq.HalfMessage`.",
        attributes=("topic", "key", "state"),
    ),
    Twin("HalfMessages", "transactions.half_messages", "transactions.half_messages", attributes=("group", "closed")),
    Twin(
        "Producer",
        "producing.producer",
        "producing",
        inner=("Adding",),
        in_loop=("spilled",),
        needs_sources=True,
        has_init=False,
    ),
    Twin("Consumer", "consuming.consumer", "consuming", direct=("assignment",)),
    Twin(
        "GroupConsumer",
        "groups.group_consumer",
        "consuming",
        direct=("assignment",),
        notes={"lag": "messages that wait in this thread count as returned."},
    ),
    Twin(
        "Queue",
        "queues.queue",
        "queues",
        attributes=("group", "topics", "settings", "member_id", "expired", "filtered", "dead_lettered", "closed"),
    ),
    Twin(
        "Search",
        "finding",
        "finding",
        attributes=("partitions", "searched", "read_bytes", "requests"),
        direct=("stopped", "rest"),
    ),
    Twin(
        "Table",
        "tables.table",
        "tables",
        attributes=("topic", "caught_up", "closed"),
        direct=(
            "get",
            "message",
            "__getitem__",
            "__contains__",
            "__len__",
            "__iter__",
            "keys",
            "values",
            "items",
            "positions",
        ),
    ),
)
"""All classes that exist twice."""


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


def _path(module: str) -> Path:
    return CLONE / f"{module.replace('.', '/')}.py"


def _by_hand(module: str, name: str) -> set[str]:
    """Return what a hand-written class defines, itself or in a hand-written base."""
    [declared] = [node for node in _tree(module).body if isinstance(node, ast.ClassDef) and node.name == name]
    found = {node.name for node in declared.body if isinstance(node, ast.FunctionDef)}
    local = {node.name for node in _tree(module).body if isinstance(node, ast.ClassDef)}
    for base in declared.bases:
        named = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        if named in local:
            found |= _by_hand(module, named)
        for node in _tree(module).body:
            source = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            is_by_hand = source.startswith(SYNC) and ".generated" not in source
            if is_by_hand and isinstance(node, ast.ImportFrom) and named in [alias.name for alias in node.names]:
                found |= _by_hand(source, named)
    return found


def _writer(twin: Twin) -> ClassWriter:
    module = Module(f"{CLIENT}.{twin.module}", _tree(f"{CLIENT}.{twin.module}"))
    shown = next((each for each in TWINS if each.name == twin.part_of), twin)
    by_hand = set() if shown.is_whole else _by_hand(f"{SYNC}.{shown.home}", shown.name)
    internal = {name.partition(".")[2] for name in INTERNAL | ONLY_ASYNC if name.startswith(f"{shown.name}.")}
    twins = {f"from {CLIENT}.{each.module} import {each.name}": each for each in TWINS}
    return ClassWriter(twin, module, by_hand | internal, twins)


def modules() -> dict[str, str]:
    """Return the text of each generated module, by its path from the clone. Raises NotGenerated."""
    made = {}
    for file in dict.fromkeys(twin.file for twin in TWINS):
        writers = [(twin, _writer(twin)) for twin in TWINS if twin.file == file]
        classes = ["\n".join(writer.lines()) for _, writer in writers]
        imports = sorted({line for _, writer in writers for line in writer.imports})
        text = "\n".join([HEAD, "", "from __future__ import annotations", "", *imports, "", "", *classes, ""])
        path = f"{SYNC}.{file}".replace(".", "/") + ".py"
        made[path] = _ruff(_ruff(text, path, "check", "--select", "I", "--fix"), path, "format")
    return made


def _ruff(text: str, path: str, *command: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    options = ["-q", "--stdin-filename", path, "-"]
    done = subprocess.run([ruff, *command, *options], input=text, capture_output=True, text=True, check=True, cwd=CLONE)
    return done.stdout


def outdated() -> Iterator[str]:
    """Yield the paths of modules that differ from what would be written."""
    for path, text in modules().items():
        file = CLONE / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            yield path


def main() -> int:
    try:
        found = list(outdated())
    except NotGenerated as error:
        print(error)
        return 1
    if "--check" in sys.argv[1:]:
        print(*(f"{path} is outdated: make pages" for path in found), sep="\n", end="\n" if found else "")
        return bool(found)
    made = modules()
    for path in found:
        (CLONE / path).write_text(made[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
