"""docs/design.md: every rule names what holds it, and every name exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.models.run import MODELS
from tests.simulation.all_mutants import MUTANTS

ROOT = Path(__file__).parents[2]
PACKAGES = ("ledgermq", "ledger", "offsets", "stateless_broker", "spark", "tests")
PAGE = (ROOT / "docs" / "design.md").read_text()
RULE = re.compile(r"^\| ([A-Z]\d+[a-z]?) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMES = re.compile(r"`([^`]+)`")


def held_by() -> dict[str, list[str]]:
    return {rule: NAMES.findall(column) for rule, _, column in RULE.findall(PAGE)}


def test_every_name_exists() -> None:
    for rule, names in held_by().items():
        for name in names:
            if name.startswith("model:"):
                model, mutant = name.removeprefix("model:").split("/")
                assert mutant in MODELS[model].mutants, f"{rule}: {name}"
            elif "/" in name:
                assert (ROOT / name).exists(), f"{rule}: {name}"
            elif not name.startswith("check_"):
                assert name in MUTANTS, f"{rule}: {name}"


def test_every_planted_bug_breaks_a_rule_of_the_page() -> None:
    named = {name for names in held_by().values() for name in names}
    planted = {*MUTANTS, *(f"model:{model.name}/{mutant}" for model in MODELS.values() for mutant in model.mutants)}
    assert planted - named == set()


def test_rules_are_numbered_once() -> None:
    rules = [rule for rule, _, _ in RULE.findall(PAGE)]
    assert len(rules) == len(set(rules)) > 40


def test_every_citation_names_a_rule_of_the_page() -> None:
    rules, citations = set(held_by()), 0
    for path in [
        *ROOT.glob("docs/**/*.md"),
        *(path for package in PACKAGES for path in ROOT.glob(f"{package}/**/*.py")),
    ]:
        for cited in re.findall(r"\bdesign ([A-Z]\d+)\b", path.read_text()):
            assert cited in rules, f"{path}: design {cited}"
            citations += 1
    assert citations, "no page and no module cites a rule: is the pattern right?"
