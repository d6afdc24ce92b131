"""A share of `make simulate LEVEL=models` for every test run."""

from __future__ import annotations

import pytest

from tests.models.run import MODELS
from tests.models.walk import Model, Violation

DESIGN_SEEDS = range(6)
MUTANT_SEEDS = range(60)
RARELY_CAUGHT = {
    ("ledger", "narrow-reader-check"),
    ("transactions", "offsets-not-fenced"),
    ("transactions", "note-by-abort"),
    ("moves", "freeze-without-barrier"),
    ("shares", "counts-in-memory"),
    ("shares", "number-without-move"),
    ("timed", "turned-by-the-clock"),
    ("timed", "turned-in-any-order"),
    ("timed", "floor-above-the-horizon"),
    ("tables", "age-by-our-own-clock"),
    ("tables", "another-id-is-a-newer-one"),
    ("tables", "a-rebuild-forgets-what-is-held"),
    ("tables", "lists-read-before-the-bundles-know"),
    ("tables", "gate-by-memory"),
    ("cuts", "confirm-without-fence"),
    ("cuts", "handed-over-too-late"),
    ("cuts", "quiet-before-it-has-read"),
    ("cuts", "no-confirm"),
    ("cuts", "hold-ends-silently"),
    ("cuts", "pins-of-its-own-bundle-only"),
    ("cuts", "pins-read-before-the-checkpoint"),
    ("cuts", "pinned-version-deleted"),
    ("cuts", "base-read-before-the-pin"),
    ("cuts", "removal-ignores-pins"),
    ("cuts", "taken-beside-a-move"),
}
"""These need hundreds of seeds: `make simulate LEVEL=models` shows them."""


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_the_rules_hold(model: Model) -> None:
    for seed in DESIGN_SEEDS:
        model.walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mutant"),
    [
        pytest.param(model, mutant, id=f"{model.name}-{mutant}")
        for model in MODELS.values()
        for mutant in model.mutants
        if (model.name, mutant) not in RARELY_CAUGHT
    ],
)
def test_a_rule_is_needed(model: Model, mutant: str) -> None:
    assert model.catch(mutant, MUTANT_SEEDS) is not None, model.mutants[mutant]


def test_a_walk_repeats() -> None:
    def outcome(model: Model, mutant: str, seed: int) -> object:
        try:
            return model.walk(seed, [mutant])
        except Violation as violation:
            return str(violation)

    for model in MODELS.values():
        for mutant in list(model.mutants)[:2]:
            assert outcome(model, mutant, 3) == outcome(model, mutant, 3)
