"""Every relative link of every page leads to a file, and to a heading of it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.docs.pages import CLONE

PAGES = sorted([*CLONE.glob("*.md"), *(CLONE / "docs").rglob("*.md")])


def place(page: Path) -> str:
    return str(page.relative_to(CLONE))


def anchors(page: Path) -> set[str]:
    """The headings as GitHub links them."""
    found: set[str] = set()
    tokens = MarkdownIt().parse(page.read_text())
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            text = re.sub(r"[^\w\- ]", "", token.content.lower()).replace(" ", "-")
            known = sum(1 for name in found if name == text or re.fullmatch(rf"{re.escape(text)}-\d+", name))
            found.add(f"{text}-{known}" if known else text)
    return found


def links(page: Path) -> list[str]:
    def within(tokens: list[Token]) -> list[str]:
        found = []
        for token in tokens:
            found += [str(value) for name, value in token.attrs.items() if name in ("href", "src")]
            found += within(token.children or [])
        return found

    return within(MarkdownIt().enable("table").parse(page.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{place(page)}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{place(page)}: {link}"
