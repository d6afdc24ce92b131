"""A bounded share of the fuzzing that `make fuzz` does, and the proof that the harness sees what it
is for.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from ledgermq.errors import Unauthenticated
from ledgermq.protocol.methods import FETCH_ONCE, METHODS, PRODUCE_ONCE
from tests.fuzz import rights_surfaces
from tests.fuzz.run import Work, describe, fuzz, share
from tests.fuzz.surface import Untyped
from tests.fuzz.surfaces import all_surfaces

INPUTS = 24_000
SEED = 20261121
CALL_OF = {"produce": PRODUCE_ONCE, "consume": FETCH_ONCE}


@pytest.mark.slow
def test_no_surface_gives_way_to_hostile_bytes() -> None:
    works = share(INPUTS, {name: surface.weight for name, surface in all_surfaces().items()})
    failures = fuzz(works, SEED)
    assert not failures, "\n".join(describe(failures, SEED))


def test_every_surface_takes_its_valid_inputs() -> None:
    """Else the fuzzing would only prove that everything is refused."""
    for surface in all_surfaces().values():
        refused = pytest.raises(Unauthenticated) if surface.name == "rights-stranger" else nullcontext()
        try:
            with refused:
                surface.check(surface.seeds[0])
        finally:
            surface.close()


@pytest.mark.slow
def test_a_crash_is_seen_and_the_rest_is_still_run() -> None:
    failures = fuzz([Work("broken-crash", 0, 10), Work("broken-raise", 0, 10)], 1)
    assert [(f.surface, f.number) for f in failures] == [("broken-crash", 1), ("broken-crash", 3), ("broken-raise", 1)]
    assert "the process died (-11)" in failures[0].what


@pytest.mark.slow
def test_an_input_that_never_ends_is_seen() -> None:
    assert [(f.number, f.what) for f in fuzz([Work("broken-hang", 0, 3)], 1, hang_s=2)] == [
        (1, "no answer, or no end of work")
    ]


@pytest.mark.parametrize("name", ["raise", "untyped"])
def test_what_no_caller_is_prepared_for_is_seen(name: str) -> None:
    [failure] = fuzz([Work(f"broken-{name}", 0, 10)], 1)
    assert failure.number == 1


def test_typed_errors_are_no_failures() -> None:
    assert fuzz([Work("broken-fine", 0, 10)], 1) == []


@pytest.mark.parametrize(("right", "complaint"), [("produce", "changed what others have"), ("consume", "showed")])
def test_what_a_right_does_not_allow_is_seen(right: str, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the broker let a caller pass that has no rule."""
    forgotten = f"allow user:{rights_surfaces.NO_RULE} {right} {rights_surfaces.THEM}"
    monkeypatch.setattr(rights_surfaces, "GRANTS", (*rights_surfaces.GRANTS, forgotten))
    seeds = [seed for seed in rights_surfaces.seeds() if seed[0] == METHODS.index(CALL_OF[right])]
    surface = rights_surfaces.ServedWithRights(rights_surfaces.NO_RULE)
    try:
        with pytest.raises(Untyped, match=complaint):
            list(map(surface.serve, seeds))
    finally:
        surface.close()
