"""Number the generations of a topic's table: the system does, whenever a user sets one. Say where the files are
that belong to it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq_ledger.topics.settings import TopicSettings, parse_stored_settings
from ledgermq_ledger.topics.topic import Topic

FORMAT = "table.format"
GENERATION = "table.generation"
LET_GO = "table.let.go"


def check_has_table(topic: Topic) -> None:
    """Raise InvalidRequest if a topic has no table."""
    if not topic.settings.table_generation:
        why = " any longer, because it held back more than table.hold.max.bytes" if topic.settings.table_let_go else ""
        raise InvalidRequest(
            f"topic {topic.name!r} has no table{why}: `ledgermq topic alter {topic.name} --set table.format=delta --set"
            " table.delta.place=topic` gives it a Delta table"
        )


def holds_too_much(settings: TopicSettings, held_bytes: int) -> bool:
    """Return True if a table that holds back so many bytes is to be unset."""
    return bool(settings.table_generation) and 0 <= settings.table_hold_max_bytes < held_bytes


def let_go_alarm(topic: Topic) -> str:
    """Return what an operator has to do about a table that was unset by `holds_too_much`."""
    return (
        f"the table of topic {topic.name} was unset, because it held back more than table.hold.max.bytes="
        f"{topic.settings.table_hold_max_bytes}: `ledgermq topic alter {topic.name} --set {FORMAT}=delta` (or iceberg)"
        f" begins it anew, `ledgermq table drop {topic.name}` empties it for its readers"
    )


def bundle_before(topic: Topic, partition: int) -> int:
    """Return from which bundle on the one in charge of a partition is to be looked for (`checkpoint_in_charge`): while
    it moves, from the one that it leaves, because its new bundle knows nothing of it at first.
    """
    move = topic.moves.get(partition)
    return topic.bundles[partition] if move is None or move.ended else move.source


def with_generation(
    raw: Mapping[str, str],
    settings: TopicSettings,
    before: TopicSettings,
    offset: int,
    *,
    rebuild: bool = False,
    let_go: tuple[int, int] = (0, 0),
) -> tuple[dict[str, str], TopicSettings]:
    """Return a topic's settings with the generation of its table. `raw`, `settings`: as a user wants them; `before`:
    those in force; `offset`: that of the next record of the catalog, which only rises; `rebuild`: begin a new
    generation. `let_go`: a generation that is to be unset, and the bytes that it holds back; another generation, and
    one that holds back no more than it may by now, stay.

    Raises InvalidConfig if the topic would become keyed, or would be so no longer, or its table would have another
    format or place, while it has a table.
    """
    numbered = {name: text for name, text in raw.items() if name not in (GENERATION, LET_GO)}
    has, had = settings.table_format != "none", bool(before.table_generation)
    generation, held_bytes = let_go
    if generation and generation == before.table_generation and holds_too_much(before, held_bytes):
        numbered |= {FORMAT: "none", LET_GO: str(generation)}
        return numbered, parse_stored_settings(numbered)
    if has and had and settings.keyed != before.keyed:
        raise InvalidConfig("cleanup.policy cannot change while the topic has a table: unset table.format before")
    if has and had and _place_of(settings) != _place_of(before):
        raise InvalidConfig(
            "table.format, table.catalog and table.namespace cannot change while the topic has a table: `ledgermq table"
            " drop` ends it before"
        )
    if has:
        numbered[GENERATION] = str(before.table_generation if had and not rebuild else offset)
    elif FORMAT in raw and LET_GO in raw:
        numbered[LET_GO] = raw[LET_GO]
    return numbered, parse_stored_settings(numbered)


def _place_of(settings: TopicSettings) -> tuple[str, str, str]:
    return settings.table_format, settings.table_catalog, settings.table_namespace
