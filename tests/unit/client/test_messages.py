"""Messages of a batch are made while Python's collector waits; whatever happens, it is afterwards
as it was before.
"""

import gc
from collections.abc import Iterator

import pytest

from ledgermq.client.consuming.message import Message, messages_of
from tests.worlds.batches import batch_of


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_the_collector_is_as_it_was(enabled: bool) -> None:
    assert len(messages_of(batch_of([{"value": b"v"}] * 5), "t", 0, 0)) == 5
    assert gc.isenabled() == enabled


def test_the_collector_is_as_it_was_after_a_failure(enabled: bool) -> None:
    with pytest.raises(ValueError, match="longer"):
        messages_of(batch_of([{"value": b"v"}]), "t", 0, [7, 8])
    assert gc.isenabled() == enabled


def test_no_collection_runs_in_between() -> None:
    collections: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    rows = batch_of([{"value": b"v"}] * 20_000)
    gc.callbacks.append(note)
    try:
        messages: list[Message] = messages_of(rows, "t", 0, 0)
    finally:
        gc.callbacks.remove(note)
    assert len(messages) == 20_000
    assert len(collections) <= 2, "one at most, when it begins again"
