"""Fragments of the change log, and the page that is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.changelog import CHANGES, HEAD, KINDS, PAGE, fragments, section, with_release


def test_all_fragments_are_of_a_kind() -> None:
    assert fragments(CHANGES).keys() == KINDS.keys()
    assert PAGE.read_text().startswith(HEAD)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.novel.md", "x"), ("a.fixed.txt", "x"), ("fixed.md", "x"), ("a.fixed.md", " \n"), ("a.fixed.md", "* x")],
)
def test_what_is_no_fragment_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"changes/{name}"):
        fragments(tmp_path)


def test_releases_stand_with_the_newest_first(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# not a fragment")
    (tmp_path / "b.fixed.md").write_text("Second,\nof two lines.\n")
    (tmp_path / "a.fixed.md").write_text("First.\n")
    (tmp_path / "z.breaking.md").write_text("Third.\n")
    made = section("0.2.0", "2026-01-02", fragments(tmp_path))
    assert made == (
        "## 0.2.0 (2026-01-02)\n\n### Programs may have to change\n\n* Third.\n\n"
        "### Mended\n\n* First.\n* Second,\n  of two lines.\n"
    )
    page = with_release(with_release(HEAD, section("0.1.0", "2026-01-01", {kind: [] for kind in KINDS})), made)
    assert page == f"{HEAD}\n{made}\n## 0.1.0 (2026-01-01)\n"
    with pytest.raises(ValueError, match=r"has 0\.2\.0 already"):
        with_release(page, made)
