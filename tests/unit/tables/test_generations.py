"""The number of a table's generation, which the system counts."""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidConfig
from ledgermq_ledger.topics.settings import TopicSettings, parse_stored_settings
from ledgermq_ledger.topics.tables import with_generation

DELTA = {"table.format": "delta", "table.delta.place": "topic"}


def changed(raw: dict[str, str], before: dict[str, str], offset: int) -> int:
    return with_generation(raw, parse_stored_settings(raw), parse_stored_settings(before), offset)[1].table_generation


def test_a_table_that_is_set_gets_a_higher_number_each_time() -> None:
    assert changed({}, {}, 5) == 0
    assert changed(DELTA, {}, 5) == 5
    numbered = DELTA | {"table.generation": "5"}
    assert changed(numbered | {"retention.ms": "1000"}, numbered, 9) == 5, "other settings leave it"
    unset = {name: text for name, text in numbered.items() if name != "table.format"}
    raw, settings = with_generation(unset, parse_stored_settings(unset), parse_stored_settings(numbered), 9)
    assert settings.table_generation == 0
    assert "table.generation" not in raw
    assert changed(DELTA, raw, 12) == 12


def test_a_topic_with_a_table_does_not_become_keyed() -> None:
    keyed = DELTA | {"cleanup.policy": "compact"}
    with pytest.raises(InvalidConfig, match="cannot change while the topic has a table"):
        changed(keyed, DELTA | {"table.generation": "5"}, 9)
    assert with_generation({}, TopicSettings(), TopicSettings(), 1) == ({}, TopicSettings())


def test_a_table_keeps_its_format_and_place() -> None:
    lake = {"table.format": "iceberg", "table.catalog": "lake", "table.namespace": "events"}
    numbered = lake | {"table.generation": "5"}
    assert changed(numbered | {"retention.ms": "1000"}, numbered, 9) == 5
    for other in (DELTA, lake | {"table.catalog": "other"}, lake | {"table.namespace": "others"}):
        with pytest.raises(InvalidConfig, match="cannot change while the topic has a table"):
            changed(other, numbered, 9)
    with pytest.raises(InvalidConfig, match="cannot change while the topic has a table"):
        changed(lake, DELTA | {"table.generation": "5"}, 9)
    unset = {name: text for name, text in lake.items() if name != "table.format"}
    assert changed(DELTA | unset, unset, 9) == 9, "after an unset another format may follow"
