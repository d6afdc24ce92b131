"""The judge allows a second copy of a half message only if its ledger has forgotten the session of the first."""

from __future__ import annotations

from tests.simulation.forgotten_sessions import is_forgotten

OWN, OTHER = b"own", b"other"


def test_a_session_is_forgotten_after_as_many_other_producers_as_the_ledger_remembers() -> None:
    others = [(OTHER, 1, 0), (OTHER, 1, 1), (b"third", 1, 0)]
    assert is_forgotten(others, OWN, 3)
    assert not is_forgotten(others, OWN, 4)
    assert not is_forgotten([*others[:2], others[0], (OWN, 2, 0), (b"", 3, 0)], OWN, 3), (
        "a batch of the same producer, of the session itself and of no producer adds none"
    )
