"""Number the generations of a topic's table: the system does, whenever a user sets one. Say where the files are
that belong to it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.errors import InvalidConfig, InvalidRequest
from ledgermq_ledger.topics.settings import DELTA, TopicSettings, parse_stored_settings
from ledgermq_ledger.topics.topic import Topic

GENERATION = "table.generation"


def check_has_table(topic: Topic) -> None:
    """Raise InvalidRequest if a topic has no table."""
    if not topic.settings.table_generation:
        raise InvalidRequest(
            f"topic {topic.name!r} has no table: `ledgermq topic alter {topic.name} --set table.format=delta --set"
            " table.delta.place=topic` gives it one"
        )


def bundle_before(topic: Topic, partition: int) -> int:
    """Return from which bundle on the one in charge of a partition is to be looked for (`checkpoint_in_charge`): while
    it moves, from the one that it leaves, because its new bundle knows nothing of it at first.
    """
    move = topic.moves.get(partition)
    return topic.bundles[partition] if move is None or move.ended else move.source


def with_generation(
    raw: Mapping[str, str], settings: TopicSettings, before: TopicSettings, offset: int, *, rebuild: bool = False
) -> tuple[dict[str, str], TopicSettings]:
    """Return a topic's settings with the generation of its table. `raw`, `settings`: as a user wants them; `before`:
    those in force; `offset`: that of the next record of the catalog, which only rises; `rebuild`: begin a new
    generation.

    Raises InvalidConfig if the topic would become keyed, or would be so no longer, while it has a table.
    """
    numbered = {name: text for name, text in raw.items() if name != GENERATION}
    has, had = settings.table_format == DELTA, bool(before.table_generation)
    if has and had and settings.keyed != before.keyed:
        raise InvalidConfig("cleanup.policy cannot change while the topic has a table: unset table.format before")
    if has:
        numbered[GENERATION] = str(before.table_generation if had and not rebuild else offset)
    return numbered, parse_stored_settings(numbered)
