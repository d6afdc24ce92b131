"""For every setting of every kind: it is read from each of its sources, a wrong value is refused by
its name, and a test shows that it changes what it says.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from ledgermq.client.groups.handlers.handler import OWN_NAMES, handler_settings
from ledgermq.client.groups.handlers.retry import Retry
from ledgermq.client.queues.runner import QueueHandlerSettings, queue_handler_settings
from ledgermq.client.settings.producers import REMOVED as REMOVED_OF_PRODUCERS
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.client.settings.serializers import Serializer
from ledgermq.client.settings.spill import Spill
from ledgermq.client.settings.values import (
    ClientSettings,
    ConsumerSettings,
    GroupSettings,
    QueueSettings,
    TableSettings,
    settings_from,
)
from ledgermq.errors import InvalidConfig
from ledgermq_broker.process.siblings import arguments
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_broker.settings.processes import (
    KINDS,
    NAMES,
    REMOVED,
    CompactionSettings,
    load_compaction_settings,
    load_settings,
)
from ledgermq_ledger.topics.settings import NAMES as TOPIC_NAMES
from ledgermq_ledger.topics.settings import SYSTEM_NAMES, TopicSettings, parse_settings, parse_stored_settings
from ledgermq_spark.sink import options as sink
from ledgermq_spark.source import options as source
from ledgermq_tools.broker.commands import with_settings
from tests.unit.setting_effects import EFFECTS

TESTS = Path(__file__).resolve().parents[1]
LOAD: dict[type, Callable[..., Any]] = {BrokerSettings: load_settings, CompactionSettings: load_compaction_settings}


def _own(kind: type, beside: type | None = None) -> list[str]:
    others = {field.name for field in fields(beside)} if beside else set()
    return [field.name for field in fields(kind) if field.name not in others]


ALL: dict[str, list[str]] = {
    "process": list(NAMES),
    "topic": list(TOPIC_NAMES),
    "client": _own(ClientSettings),
    "producer": _own(ProducerSettings),
    "consumer": _own(ConsumerSettings),
    "table": _own(TableSettings, ConsumerSettings),
    "group": _own(GroupSettings, ConsumerSettings),
    "handler": list(OWN_NAMES),
    "queue": _own(QueueSettings),
    "queue handler": [name for name in _own(QueueHandlerSettings) if name not in ("topics", "group", "queue")],
    "Spark source": list(source.NAMES),
    "Spark sink": list(sink.NAMES),
}


# -- 1, processes: file, variable, flag

PROCESS = [(kind, name) for kind in KINDS for name in kind.model_fields]
GOOD_NUMBER = {"cut_every_ms": 600_000}
"""Of those that are 0 or at least something."""
GOOD_TEXT = {
    "cluster_id": "0" * 32,
    "broker_id": "b.1",
    "super_principals": "user:root, cert:a.b",
    "delegates": "user:gateway, cert:gateway.example",
    "archive_urls": "s3://vault/old",
    "cut_keep": "12h",
}


def _bound(field: FieldInfo, name: str) -> int | None:
    return next((int(found) for rule in field.metadata if (found := getattr(rule, name, None)) is not None), None)


def _good(kind: Any, name: str) -> Any:
    """A value that is allowed, and not the default."""
    field = kind.model_fields[name]
    hint = str(field.annotation)
    if "Literal" in hint:
        return next(choice for choice in get_args(field.annotation) if choice != field.default)
    if "bool" in hint:
        return not field.default
    if "int" in hint or "float" in hint:
        if name in GOOD_NUMBER:
            return GOOD_NUMBER[name]
        least = _bound(field, "ge") or 0
        return least + 1 if least == field.default else least
    return GOOD_TEXT.get(name, "text")


def _bad(kind: Any, name: str) -> Any:
    field = kind.model_fields[name]
    hint = str(field.annotation)
    if ("int" in hint or "float" in hint) and "bool" not in hint:
        least = _bound(field, "ge")
        assert least is not None, "every number has a least value"
        return least - 1
    return "xyzzy!" if "Literal" in hint or "bool" in hint or name in GOOD_TEXT else 5


@pytest.mark.parametrize(("kind", "name"), PROCESS, ids=lambda value: getattr(value, "__name__", value))
def test_a_process_reads_it_from_file_variable_and_flag(
    kind: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, file = _good(kind, name), tmp_path / "all.toml"
    file.write_text(f"{name} = {json.dumps(good)}\n")
    assert getattr(LOAD[kind](), name) != good
    assert getattr(LOAD[kind](file), name) == good
    given: dict[str, Any] = {}
    app = typer.Typer()
    app.command()(with_settings(kind)(lambda **flags: given.update(flags)))
    done = CliRunner().invoke(app, arguments({name: good}))
    assert done.exit_code == 0, done.output
    assert getattr(LOAD[kind](**given), name) == good
    monkeypatch.setenv(f"LEDGERMQ_{name.upper()}", str(good))
    assert getattr(LOAD[kind](), name) == good


@pytest.mark.parametrize(("kind", "name"), PROCESS, ids=lambda value: getattr(value, "__name__", value))
def test_a_process_refuses_a_wrong_value_by_name(kind: Any, name: str, tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(f"{name} = {json.dumps(_bad(kind, name))}\n")
    with pytest.raises(InvalidConfig, match=rf"setting {name}: .*\(from the file\)"):
        LOAD[kind](file)


@pytest.mark.parametrize("name", REMOVED)
def test_a_setting_that_was_removed_is_refused_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = re.escape(f"setting {name!r} was removed: {REMOVED[name]}")
    file = tmp_path / "all.toml"
    file.write_text(f"{name} = 1\n")
    with pytest.raises(InvalidConfig, match=said):
        load_settings(file)
    with pytest.raises(InvalidConfig, match=said):
        load_settings(**{name: 1})
    monkeypatch.setenv(f"LEDGERMQ_{name.upper()}", "1")
    with pytest.raises(InvalidConfig, match=said):
        load_compaction_settings()


def test_a_setting_of_producers_that_was_removed_is_refused_with_what_to_do() -> None:
    for name, advice in REMOVED_OF_PRODUCERS.items():
        with pytest.raises(InvalidConfig, match=re.escape(advice)):
            settings_from(ProducerSettings, {name: 1})


def test_upgrades_names_every_setting_that_was_removed() -> None:
    page = (TESTS.parent / "docs" / "upgrades.md").read_text(encoding="utf-8")
    assert [name for name in (*REMOVED, *REMOVED_OF_PRODUCERS) if f"`{name}`" not in page] == []


# -- 1, topics

TOPIC_TEXTS = {
    "parquet.row.group.bytes": "2097152",
    "cleanup.policy": "compact",
    "compression.type": "zstd",
    "delete.action": "archive",
    "backlog.quota.policy": "consumer_backlog_eviction",
    "delete.when": "0 6 * * *",
    "table.format": "delta",
    "table.delta.place": "topic",
    "table.catalog": "lake",
    "table.namespace": "events.raw",
    "table.keep.ms": "70000",
    "table.hold.max.bytes": "1000000",
    "delete.when.timezone": "Europe/Berlin",
    "archive.url": "s3://bucket/archive",
    "min.cleanable.dirty.ratio": "0.25",
    "message.timestamp.type": "LogAppendTime",
    "priority.levels": "3",
    "value.schema.framing": "header",
    "value.validate": "id",
}


@pytest.mark.parametrize("name", TOPIC_NAMES)
def test_a_topic_reads_it_and_refuses_a_wrong_value_by_name(name: str) -> None:
    field = name.replace(".", "_")
    default = getattr(TopicSettings(), field)
    text = TOPIC_TEXTS.get(name) or (str(not default).lower() if isinstance(default, bool) else "5000")
    found = getattr(parse_settings({name: text}), field)
    assert str(found).lower() == text.lower()
    assert found != default
    with pytest.raises(InvalidConfig, match=f"topic setting {re.escape(name)}: 'xyzzy!' is not allowed"):
        parse_settings({name: "xyzzy!"})


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("internal.kind", "staged", "wheel"),
        ("transaction.coordinators", "15", "0"),
        ("cluster.bundles", "9", "1"),
        ("partitions.moved", "true", "yes"),
        ("table.generation", "5", "0"),
        ("table.let.go", "5", "0"),
    ],
)
def test_a_setting_of_the_system_is_read_and_users_may_not_choose_it(name: str, good: str, bad: str) -> None:
    found = getattr(parse_stored_settings({name: good}), name.replace(".", "_"))
    assert str(found).lower() == good
    assert found != getattr(TopicSettings(), name.replace(".", "_"))
    with pytest.raises(InvalidConfig, match=f"topic setting {re.escape(name)}: '{bad}' is not allowed"):
        parse_stored_settings({name: bad})
    for text in (good, bad):
        with pytest.raises(InvalidConfig, match=re.escape(f"topic setting {name!r} is set by the system only")):
            parse_settings({name: text})


def test_every_setting_of_the_system_is_tested() -> None:
    assert SYSTEM_NAMES == (
        "internal.kind",
        "transaction.coordinators",
        "cluster.bundles",
        "partitions.moved",
        "table.generation",
        "table.let.go",
    )


# -- 1, the SDK


def _nothing(*_: object) -> None:
    pass


class _Store:
    load = commit = staticmethod(_nothing)


class _Executor:
    submit = staticmethod(_nothing)


SDK_VALUES: dict[str, Any] = {
    "tls": True,
    "must_exist": True,
    "filter": "A",
    "token": "t",
    "token_file": "/t",
    "on_trouble": _nothing,
    "tracing": True,
    "metrics": True,
    "tracing_parent": "message",
    "acks": "received",
    "idempotent": False,
    "linger_ms": 7,
    "compression": "zstd",
    "when_full": "fail",
    "batch_by": "tag",
    "window_batches": 1,
    "partitioner": _nothing,
    "serializer": Serializer.json(),
    "deserializer": Serializer.json(),
    "interceptors": [_nothing],
    "raise_on_error": False,
    "on_delivery": _nothing,
    "auto_create": False,
    "spill": Spill("orders.spill"),
    "access_mode": "exclusive",
    "name": "writer-1",
    "auto_offset_reset": "earliest",
    "direct_reads": "file:///root",
    "deliver_expired": True,
    "commit": "manual",
    "heartbeat_wait_s": 1.5,
    "revoke_wait_s": 1.5,
    "assignor": "sticky",
    "instance_id": "i",
    "rack": "r",
    "client_id": "c",
    "offset_store": _Store(),
    "broadcast": True,
    "on_assigned": _nothing,
    "on_revoked": _nothing,
    "on_lost": _nothing,
    "ordered_by": "key",
    "executor": _Executor(),
    "on_failure": _nothing,
    "retry": Retry.in_order(max_attempts=3, then="stop"),
    "transactional": True,
    "batch": True,
    "middleware": [_nothing],
    "transactional_id": "i",
    "dead_letters": False,
}
SDK_KINDS = {
    "client": ClientSettings,
    "producer": ProducerSettings,
    "consumer": ConsumerSettings,
    "table": TableSettings,
    "group": GroupSettings,
    "queue": QueueSettings,
}


def _made(kind: str, given: dict[str, Any]) -> Any:
    if kind == "handler":
        return handler_settings("t", "g", {"transactional": True} | given if "transactional_id" in given else given)
    if kind == "queue handler":
        return queue_handler_settings("t", "g", given)
    return settings_from(SDK_KINDS[kind], given)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in (*SDK_KINDS, "handler", "queue handler") for name in ALL[kind]], ids=str
)
def test_the_sdk_reads_it_and_refuses_a_wrong_value_by_name(kind: str, name: str) -> None:
    default = getattr(_made(kind, {}), name)
    value = SDK_VALUES.get(name, 40)
    found = getattr(_made(kind, {name: value}), name)
    assert found == value
    assert found != default
    with pytest.raises(InvalidConfig, match=name):
        _made(kind, {name: object()})


# -- 1, Spark

BAD_SOURCE = {
    "root": "",
    "servers": "s3://b/p",
    "groupIdForCommit": "g",
    "topic": "",
    "topics": " , ",
    "topicsPattern": "(",
    "token": "two words",
}
BAD_SINK = {"servers": "s3://b/p", "token": "two words", "writeId": "a b", "writeEpoch": "-1"}
ANY_TEXT = {
    "Spark source": {"tag", "tlsCaFile", "tokenFile"},
    "Spark sink": {"topic", "root", "tlsCaFile", "tokenFile"},
}
"""Every text is a value of these."""


@pytest.mark.parametrize("name", [name for name in source.NAMES if name not in ANY_TEXT["Spark source"]])
def test_the_spark_source_refuses_a_wrong_value_by_name(name: str) -> None:
    topics = {} if name in ("topics", "topicsPattern") else {"topic": "t"}
    with pytest.raises(InvalidConfig, match=name):
        source.parse_options({"root": "/r", **topics, name: BAD_SOURCE.get(name, "xyzzy!")})


@pytest.mark.parametrize("name", [name for name in sink.NAMES if name not in ANY_TEXT["Spark sink"]])
def test_the_spark_sink_refuses_a_wrong_value_by_name(name: str) -> None:
    named = {"writeId": "w"} if name == "writeEpoch" else {}
    with pytest.raises(InvalidConfig, match=name):
        sink.parse_options({"servers": "a:1", **named, name: BAD_SINK.get(name, "xyzzy!")}, streaming=False)


# -- 2, effects


@cache
def _file(path: str) -> tuple[str, frozenset[str]]:
    """Its text, and the names of its tests."""
    text = (TESTS / path).read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text))
    return text, frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("kind", ALL)
def test_every_setting_has_an_effect_that_a_test_shows(kind: str) -> None:
    assert set(EFFECTS[kind]) == set(ALL[kind]), "setting_effects.py has the table"
    for name, test in EFFECTS[kind].items():
        path, _, function = test.partition("::")
        text, functions = _file(path)
        assert function in functions, f"{kind} {name}: there is no {test}"
        spellings = {name, name.replace("_", "-"), name.replace(".", "_"), name.upper()}
        assert any(spelling in text for spelling in spellings), f"{kind} {name}: {test} never names it"
