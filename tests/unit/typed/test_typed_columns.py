"""Which schema a value says it has, evolution, rows in their places, and children that die of a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from ledgermq.errors import FormatNotSupported, Unavailable
from ledgermq_ledger.typed.children import (
    DEATHS_MAX,
    FAILED,
    FAILED_TOGETHER,
    STOOD_STILL,
    Child,
    Children,
    Decoders,
    Died,
)
from ledgermq_ledger.typed.chunk import Work
from ledgermq_ledger.typed.column import RULES, check_rules
from ledgermq_ledger.typed.shape import shape_of
from ledgermq_ledger.typed.stillness import LOOKS_MAX, LOOKS_UNSEEN_MAX, Looks
from tests.worlds.typed_values import avro, decoded, framed, record, schemas_of

ONE, TWO = record(("a", "int")), record(("a", "long"), ("b", ["null", "string"]))


def test_values_of_all_versions_have_one_struct() -> None:
    versions = schemas_of(ONE, TWO)
    values = [
        framed(1, avro(ONE, {"a": 1})),
        None,
        framed(2, avro(TWO, {"a": 2, "b": "x"})),
        framed(3, b""),
        b"",
        b"\0\0",
        b'{"a": 1}',
        framed(1, avro(ONE, {"a": 3})),
    ]
    nameless = (None, "the value names no schema")
    assert decoded(versions, values) == [
        ({"a": 1, "b": None}, None),
        (None, None),
        ({"a": 2, "b": "x"}, None),
        (None, "schema 3 is none of subject t-value"),
        nameless,
        nameless,
        nameless,
        ({"a": 3, "b": None}, None),
    ]


def test_a_header_names_the_schema_of_a_bare_value() -> None:
    value = avro(ONE, {"a": 1})
    name = "ledgermq.schema-id"
    headers: list[Any] = [
        [{"key": name, "value": b"1"}],
        [{"key": "x", "value": b"9"}, {"key": name, "value": b"7"}, {"key": name, "value": b"1"}],
        [{"key": name, "value": b"1.0"}],
        [{"key": name, "value": None}],
        [{"key": name, "value": b"99999999999"}],
        [],
        None,
    ]
    found = decoded(schemas_of(ONE), [value] * len(headers), "header", headers)
    assert found == [({"a": 1}, None)] * 2 + [(None, "the value names no schema")] * 5


def test_bare_values_are_of_the_version_that_is_set_or_of_the_newest_one() -> None:
    versions = schemas_of(ONE, record(("a", "int"), ("b", "string")))
    assert decoded(versions, [avro(ONE, {"a": 1})], "none", version=1) == [({"a": 1, "b": None}, None)]
    assert decoded(versions, [b"\x02\x02x"], "none") == [({"a": 1, "b": "x"}, None)]
    assert decoded(versions, [b"\x02"], "none", version=9) == [(None, "subject t-value has no version 9")]
    assert decoded([], [b"\x02", None], "none") == [(None, "subject t-value has no schema"), (None, None)]


def test_a_hundred_thousand_made_up_ids_take_no_time() -> None:
    values = [framed(number, b"") for number in range(10, 100_010)]
    found = decoded(schemas_of(ONE), values)
    assert found[-1] == (None, "schema 100009 is none of subject t-value")


def test_values_that_are_no_records_have_a_reason() -> None:
    assert decoded(schemas_of('"string"'), [framed(1, b"\x02x")]) == [
        (None, "schema 1 has no columns: it is of no record")
    ]


def work_of(*texts: Any) -> Work:
    versions = schemas_of(*texts)
    shape = shape_of(versions)
    root = shape.versions[versions[-1].version]
    assert root is not None
    assert shape.type is not None
    return Work("avro", versions[-1].text, root, shape.type)


KILLER = """
import os, sys
from ledgermq_ledger.typed import child, chunk
real = chunk.ChunkDecoder.decode
def decode(self, values):
    if b"\\x0c" in values.to_pylist(): {how}
    return real(self, values)
chunk.ChunkDecoder.decode = decode
child.main()
"""
"""A child whose decoder ends badly at the value 6."""


ChildrenOf = Callable[[str], Children]


@pytest.fixture
def children_of() -> Iterator[ChildrenOf]:
    """Return what makes children that run another program; they end with the test."""
    made: list[Children] = []

    def make(program: str) -> Children:
        made.append(Children(lambda: Child(program)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "os.kill(os.getpid(), 11)",
        "os._exit(0)",
        "raise MemoryError",
        "sys.stdout = None; os.write(1, b'\\0\\0\\0\\4junk'); os._exit(1)",
        "b'x' * 2**40",
        "[0 for _ in iter(int, 1)]",
        pytest.param("os.kill(os.getpid(), 9)", id="killed, as by the system"),
    ],
)
def test_what_a_value_does_to_a_decoder_ends_no_other_process(how: str, children_of: ChildrenOf) -> None:
    decoders = Decoders(children_of(KILLER.format(how=how).replace("child.main()", "child.CPU_S = 0; child.main()")))
    values = [framed(1, avro(ONE, {"a": number})) for number in (5, 6, 7)]
    found = decoded(schemas_of(ONE), values, decoders=decoders)
    assert found == [({"a": 5}, None), (None, FAILED), ({"a": 7}, None)]
    assert decoders.deaths == 3, "of all, of the last two, of the one"


def test_a_flood_of_such_values_costs_a_bounded_number_of_processes(children_of: ChildrenOf) -> None:
    decoders = Decoders(children_of(KILLER.format(how="os._exit(0)")), DEATHS_MAX)
    values = [framed(1, avro(ONE, {"a": 6 if number == 70 else 1})) for number in range(128)]
    found = decoded(schemas_of(ONE), values, decoders=decoders)
    assert found == [({"a": 1}, None)] * 64 + [(None, FAILED_TOGETHER)] * 64
    assert decoders.deaths == DEATHS_MAX + 2


def test_a_child_that_cannot_be_started_is_no_fault_of_values(children_of: ChildrenOf) -> None:
    with pytest.raises(Unavailable, match="ended as soon as it was started"):
        Decoders(children_of("raise SystemExit(1)")).decode(work_of(ONE), pa.array([b"\x02"]))


@pytest.mark.parametrize("how", ["time.sleep(10**6)", "signal.pause()", "os.read(os.pipe()[0], 1)"])
def test_a_decoder_that_stands_still_is_ended(how: str) -> None:
    """It uses no processor time, so no bound of that ends it; other values go to another child."""
    program = KILLER.format(how=f"import signal, time; {how}")
    impatient = Children(lambda: Child(program, look_every_s=0.05))
    decoders = Decoders(impatient)
    assert decoded(schemas_of(ONE), [framed(1, avro(ONE, {"a": 6}))], decoders=decoders) == [(None, STOOD_STILL)]
    assert decoders.deaths == 1, "it is no kill by the system, which would be tried again"


def test_a_child_that_stands_still_when_it_is_started_is_no_fault_of_values() -> None:
    still = Children(lambda: Child("import time; time.sleep(10**6)", look_every_s=0.05))
    with pytest.raises(Unavailable, match="stood still when it was started"):
        Decoders(still).decode(work_of(ONE), pa.array([b"\x02"]))


def test_a_child_that_does_not_take_its_request_is_ended() -> None:
    """The request is larger than a pipe holds, so writing it waits, too."""
    program = """
import sys, time
from ledgermq_ledger.typed.child import HELLO, write
write(sys.stdout.buffer, HELLO)
time.sleep(10**6)
"""
    with pytest.raises(Died) as failure:
        Child(program, look_every_s=0.05).decode(work_of(ONE), pa.array([b"\x02" * 2**20]))
    assert failure.value.still
    assert not failure.value.killed


def test_only_looks_without_any_progress_count() -> None:
    looks = Looks()
    assert [looks.is_still(used) for used in (1.0, *[1.0] * (LOOKS_MAX - 1), 2.0)] == [False] * (LOOKS_MAX + 1)
    assert [looks.is_still(2.0) for _ in range(LOOKS_MAX)] == [False] * (LOOKS_MAX - 1) + [True]
    unseen = Looks()
    assert [unseen.is_still(None) for _ in range(LOOKS_UNSEEN_MAX)].index(True) == LOOKS_UNSEEN_MAX - 1


def test_an_answer_that_fits_no_request_is_a_death() -> None:
    program = """
import sys
from ledgermq_ledger.typed import child
child.write(sys.stdout.buffer, child.HELLO)
child.read(sys.stdin.buffer), child.read(sys.stdin.buffer)
child.write(sys.stdout.buffer, b"x")
sys.stdin.buffer.read()
"""
    with pytest.raises(Died):
        Child(program).decode(work_of(ONE), pa.array([b"\x02"]))


def test_a_child_has_no_secrets_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    program = """
import os, sys
from ledgermq_ledger.typed import child
child.write(sys.stdout.buffer, b"ready" if "AWS_SECRET_ACCESS_KEY" not in os.environ else b"wrong")
"""
    Child(program).close()


def test_a_child_ends_with_its_input() -> None:
    one = Child()
    process = one._process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    one.close()


def test_a_program_with_other_rules_refuses_the_file() -> None:
    check_rules(RULES)
    with pytest.raises(FormatNotSupported, match="use the later one"):
        check_rules(RULES + 1)
