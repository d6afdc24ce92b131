"""The schemas of a cluster as a fold of records, and what a change of them writes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ledgermq.errors import DataDamaged, IncompatibleSchema, InvalidRequest, ResourceExhausted, UnknownSchema
from ledgermq_broker.schemas.state import registry as rules
from ledgermq_broker.schemas.state.registry import Record, Registry, delete, judge, parsed, put, registry_of
from ledgermq_ledger.schemas.format import ledgermq_schemas_pb2 as fmt
from ledgermq_ledger.schemas.records import SCHEMAS_KEY, schema_key, subject_key


class Log:
    """The newest record of each key, as the catalog keeps it."""

    def __init__(self) -> None:
        self.records: dict[bytes, tuple[int, bytes]] = {}
        self.offset = 0
        self.registry = Registry()

    def append(self, records: Sequence[Record]) -> None:
        for key, value in records:
            self.offset += 1
            assert value is not None
            self.records[key] = (self.offset, value)
        self.registry = registry_of(self.records, self.registry)

    def put(self, subject: str, text: str, kind: str = "avro", mode: str = "") -> tuple[int, int]:
        found = parsed(kind, text)
        judge(self.registry, subject, found, mode)
        schema, records = put(self.registry, subject, found, mode, 1, "user:a")
        self.append(records)
        assert schema is not None
        return schema.version, schema.id

    def delete(self, subject: str, version: int = 0, nonce: bytes = b"", *, for_good: bool = False) -> Sequence[int]:
        versions, records = delete(self.registry, subject, version, nonce, for_good=for_good)
        self.append(records)
        return versions


def record(*fields: str) -> str:
    named = ", ".join(f'{{"name": "{name}", "type": "int", "default": 0}}' for name in fields)
    return f'{{"type": "record", "name": "R", "fields": [{named}]}}'


def test_an_equal_text_keeps_its_version_and_its_id() -> None:
    log = Log()
    assert log.put("a", record("x")) == (1, 1)
    assert log.put("a", record("x", "y")) == (2, 2)
    before = log.offset
    assert log.put("a", record("x").replace(" ", "  ")) == (1, 1)
    assert log.offset == before, "nothing is written"
    assert log.put("b", record("x")) == (1, 1), "one id for one text, under whatever subject"
    assert log.registry.subjects_of(1) == ["a", "b"]


def test_ids_are_never_given_twice() -> None:
    log = Log()
    log.put("a", record("x"))
    log.put("a", record("x", "y"))
    assert log.delete("a") == [1, 2]
    assert log.delete("a", for_good=True) == [1, 2]
    assert log.put("a", record("z")) == (3, 3)
    assert log.registry.of_id(2).text == record("x", "y"), "rows may need it"
    ids = {field.path: field.id for field in log.registry.version("a", 3).fields}
    assert ids == {"/z": 103, "/x": 101, "/y": 102}
    log.put("b", record("x"))
    assert [field.id for field in log.registry.version("b", 1).fields] == [104], "not that of another subject"


def test_deleted_versions_are_hidden_and_not_compared_with() -> None:
    log = Log()
    log.put("a", record("x"))
    log.put("a", '{"type": "record", "name": "R", "fields": []}')
    assert log.delete("a", 2) == [2]
    assert log.registry.version("a", 0).version == 1
    assert log.registry.version("a", 2, deleted=True).version == 2
    with pytest.raises(UnknownSchema, match="no version 2"):
        log.delete("a", 2)
    with pytest.raises(InvalidRequest, match="first"):
        log.delete("a", 1, for_good=True)
    assert log.delete("a", 2, for_good=True) == [2]
    with pytest.raises(UnknownSchema):
        log.registry.version("a", 2, deleted=True)
    log.delete("a")
    with pytest.raises(UnknownSchema, match="there is no subject 'a'"):
        log.registry.version("a", 0)


def test_a_repeated_deletion_deletes_nothing_that_came_since() -> None:
    log = Log()
    log.put("a", record("x"))
    assert log.delete("a", nonce=b"one") == [1]
    log.put("a", record("x", "y"))
    assert log.delete("a", nonce=b"one") == ()
    assert log.registry.version("a", 0).version == 2


@pytest.mark.parametrize(
    ("mode", "more", "fewer"),
    [("none", True, True), ("backward", False, True), ("forward", True, False), ("full", False, False)],
)
def test_each_mode_refuses_what_it_is_for(mode: str, more: bool, fewer: bool) -> None:
    def text(*fields: str) -> str:
        named = ", ".join(f'{{"name": "{name}", "type": "int"}}' for name in fields)
        return f'{{"type": "record", "name": "R", "fields": [{named}]}}'

    for fields, fits in ((("x", "y"), more), ((), fewer)):
        log = Log()
        log.put("a", text("x"), mode=mode)
        if fits:
            log.put("a", text(*fields))
        else:
            with pytest.raises(IncompatibleSchema, match=f"not {mode} compatible with subject 'a'"):
                log.put("a", text(*fields))


def test_a_transitive_mode_compares_with_all() -> None:
    def text(default: bool) -> str:
        return record("x").replace(', "default": 0', ', "default": 0' if default else "")

    for mode, fits in (("backward", True), ("backward_transitive", False)):
        log = Log()
        log.put("a", '{"type": "record", "name": "R", "fields": []}', mode=mode)
        log.put("a", text(True))
        if fits:
            log.put("a", text(False))
        else:
            with pytest.raises(IncompatibleSchema, match="version 1"):
                log.put("a", text(False))


def test_each_mode_refuses_what_a_table_cannot_follow() -> None:
    log = Log()
    log.put("a", record("x"), mode="none")
    with pytest.raises(IncompatibleSchema, match="a table cannot make string of it"):
        log.put("a", record("x").replace('"int", "default": 0', '"string"'))
    with pytest.raises(IncompatibleSchema, match="of kind avro"):
        log.put("a", "{}", "json", mode="backward")


def test_a_text_that_is_there_is_not_judged_again() -> None:
    log = Log()
    log.put("a", record("x"), mode="none")
    log.put("a", '{"type": "record", "name": "R", "fields": [{"name": "y", "type": "int"}]}')
    log.append(put(log.registry, "a", None, "full_transitive", 1, "")[1])
    assert log.put("a", record("x")) == (1, 1)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(rules, "VERSIONS_MAX", 1)
    log.put("a", record("x"))
    with pytest.raises(ResourceExhausted, match="use another subject"):
        log.put("a", record("x", "y"))
    monkeypatch.setattr(rules, "TEXTS_BYTES_MAX", len(record("x")) + 5)
    with pytest.raises(ResourceExhausted, match="all schemas together"):
        log.put("b", record("x"))
    monkeypatch.setattr(rules, "SCHEMAS_MAX", 1)
    with pytest.raises(ResourceExhausted, match="the most that it keeps"):
        log.put("b", record("x"))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * 256, "a\n"])
def test_names_of_subjects(name: str) -> None:
    with pytest.raises(InvalidRequest, match="a name has 1 to 255"):
        rules.checked_subject(name)


def test_records_of_a_later_release_stop_changes_of_their_subject() -> None:
    log = Log()
    log.put("a", record("x"))
    log.put("b", record("y"))
    later = fmt.SchemaRecord(version=2).SerializeToString()
    log.append([(schema_key("a", 2), later)])
    with pytest.raises(DataDamaged, match="subject 'a' cannot be read by this release"):
        log.put("a", record("x", "z"))
    assert log.put("b", record("y", "z")) == (2, 3)
    log.append([(subject_key("b"), b"\xff"), (SCHEMAS_KEY, fmt.SchemasRecord(version=2).SerializeToString())])
    with pytest.raises(DataDamaged, match="counts of schemas"):
        log.put("c", record("x", "z"))
    assert log.registry.of_id(1).text == record("x"), "what can be read is served"


@pytest.mark.parametrize("seed", range(20))
def test_a_fold_in_steps_is_the_fold_of_all(seed: int) -> None:
    chosen, log, meanings = random.Random(seed), Log(), {}
    for step in range(60):
        subject = chosen.choice("ab")
        try:
            if chosen.random() < 0.7:
                log.put(subject, record(*chosen.sample("vwxyz", chosen.randrange(1, 4))), mode="none")
            else:
                log.delete(subject, chosen.choice((0, 1, 2)), bytes([step]), for_good=chosen.random() < 0.3)
        except (UnknownSchema, InvalidRequest):
            continue
        assert log.registry == registry_of(log.records)
        for versions in log.registry.schemas.values():
            for schema in versions.values():
                assert meanings.setdefault(schema.id, schema.digest) == schema.digest
                for field in schema.fields:
                    assert meanings.setdefault((schema.subject, field.path), field.id) == field.id
    ids = [value for key, value in meanings.items() if isinstance(key, tuple)]
    assert len(ids) == len(set(ids)), "one field id is one field"
