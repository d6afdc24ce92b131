"""docs/api.md is made from the docstrings and complete."""

from __future__ import annotations

import re
from pathlib import Path

import ledgermq
from infra.api_page import page
from infra.internal_names import INTERNAL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: make pages"


def test_every_public_name_and_every_error_is_there() -> None:
    lines = page().splitlines()
    for name in set(ledgermq.__all__) - {"__version__"}:
        assert f"## ledgermq.{name}" in lines
    errors = {line.split("`")[1] for line in lines if line.startswith("| `") and "`LedgerMQError`" in line}
    assert {"Unavailable", "OutcomeUnknown", "DataDamaged"} & errors == set()  # they are kinds of others
    assert {"InvalidRequest", "RetriableError", "StoreError"} <= errors


def test_no_page_tells_users_to_call_what_is_internal() -> None:
    pages = [path.read_text() for path in PAGE.parent.glob("*.md") if path.name != "bugs-found.md"]
    headings = {line for line in page().splitlines() if line.startswith("### ")}
    for internal in INTERNAL:
        kind, _, name = internal.partition(".")
        assert f"### {internal}" not in headings
        call = re.compile(rf"\b{kind.lower()}\.{name}\(")
        assert not [text for text in pages if call.search(text)], f"a page names {internal}, which is internal"


def test_signatures_are_shown_as_they_are_called() -> None:
    text = page()
    assert "await fetch(max_records: int = 500, timeout: float = 1.0) -> list[Message[V]]" in text
    assert "connect(target: str, *, sources: Sources | None = None" in text
    assert "ForwardRef" not in text
