"""Random messages of the Kafka protocol, which two other implementations must read as they are."""

from __future__ import annotations

import random
import types
import typing
from functools import cache
from typing import Any

from infra.kafka_definitions import read_definition
from infra.kafka_messages import DEFINITIONS
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.messages import APIS, Api, Message, written

WIDTHS = {"b": 8, "h": 16, "H": 16, "i": 32, "I": 32, "q": 64}


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def drawn(rng: random.Random, kind: type[Any], nulls: bool = True) -> Any:
    """A structure with a random value in every field. Integers fit into 15 bits, and into 7 where a field of the name
    has eight; those are larger whose names say so.
    """
    return kind(**{name: _value(rng, name, hint, nulls) for name, hint in _hints(kind).items()})


def _value(rng: random.Random, name: str, hint: Any, nulls: bool) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        if nulls and type(None) in typing.get_args(hint) and rng.random() < 0.3:
            return None
        if bytes in kinds:
            return rng.randbytes(rng.choice((0, 1, 127, 128, 300)))
        hint = kinds[0]
    if typing.get_origin(hint) is list:
        return [_value(rng, name, typing.get_args(hint)[0], nulls) for _ in range(rng.choice((0, 1, 2, 3)))]
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return _number(rng, name)
    if hint is float:
        return rng.choice((0.0, -1.5, 2.0**60, 1e-300))
    if hint is str:
        return rng.choice(("", "a", "ä" * 70, "topic.name", "x" * 200))
    if hint is bytes:
        return rng.randbytes(16)
    return drawn(rng, hint, nulls)


@cache
def _small() -> frozenset[str]:
    """The names of fields that have eight bits in some message."""
    found = set()
    for path in DEFINITIONS.glob("*.json"):
        message = read_definition(path)
        found |= {field.name for structure in message.structures for field in structure.fields if field.kind == "int8"}
    return frozenset(found)


def _number(rng: random.Random, name: str) -> int:
    if name in _small():
        return rng.choice((-1, 0, 1, 77))
    if name.endswith("error_code"):
        return rng.choice(
            [code for code in Code if code != Code.UNSUPPORTED_VERSION]
        )  # kafka-python reads on as version 0
    if name.endswith("_ms") or name in ("isolation_level", "key_type"):
        return rng.choice((0, 1, 100))
    if name in ("tag", "acks", "min_version", "max_version", "api_key", "producer_epoch", "isolation_level"):
        return rng.choice((-1, 0, 1, 77))
    if name.endswith("offset") or name in ("high_watermark", "producer_id"):
        return rng.choice((-1, 0, 2**40))
    if "level" in name:
        return rng.choice((0, 7))
    return rng.choice((-1, 0, 1, 2**15 - 1))


def message(rng: random.Random, kind: type[Message], version: int) -> tuple[Any, bytes]:
    """A message that the version can say, with its bytes."""
    made = drawn(rng, kind)
    try:
        return made, b"".join(written(made, version))
    except ValueError:  # null where this version has none
        made = drawn(rng, kind, nulls=False)
        return made, b"".join(written(made, version))


def every_message() -> list[tuple[Api, type[Message], int]]:
    """Each request and response in each version."""
    return [
        (api, kind, version)
        for api in APIS
        for kind in (api.request, api.response)
        for version in range(api.versions[0], api.versions[1] + 1)
    ]
