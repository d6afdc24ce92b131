"""The documentation site: where pages stand, where their links lead, that no page is lost, that it builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.site.build import asks, build
from infra.site.pages import missing, navigation, page_of, place_of

ROWS = """# All pages

| | |
|---|---|
| start | [tutorial](tutorial.md), [`ledgermq` commands](cli.md) |
| understand | [architecture](../ARCHITECTURE.md) (one page), [decisions](decisions/) |
"""


def test_pages_keep_their_place_below_docs() -> None:
    assert place_of("docs/groups.md") == "groups.md"
    assert place_of("docs/decisions/0001-a.md") == "decisions/0001-a.md"
    assert place_of("README.md") == "index.md"


@pytest.mark.parametrize(
    ("source", "link", "moved"),
    [
        ("README.md", "[groups](docs/groups.md#resets)", "[groups](groups.md#resets)"),
        ("docs/groups.md", "[a decision](decisions/0016-a.md)", "[a decision](decisions/0016-a.md)"),
        ("docs/decisions/0016-a.md", "[map](../../ARCHITECTURE.md)", "[map](../architecture.md)"),
        ("docs/groups.md", "[program](../examples/bank.py)", "[program](files/examples/bank.py)"),
        ("docs/groups.md", "[programs](../examples)", "programs"),
        ("docs/groups.md", "[all](decisions/)", "[all](decisions/index.md)"),
        ("README.md", "![a chart](docs/images/overview.png)", "![a chart](images/overview.png)"),
        ("docs/groups.md", "[above](#resets)", "[above](#resets)"),
        ("docs/groups.md", "[there](https://example.org/a.md)", "[there](https://example.org/a.md)"),
        ("docs/groups.md", "[`a[0]`](cli.md)", "[`a[0]`](cli.md)"),
    ],
)
def test_links_lead_to_the_same_page_of_the_site(source: str, link: str, moved: str) -> None:
    page = page_of(source, f"see {link}.", lambda path: path.endswith(".py"))
    assert page.text == f"see {moved}."
    assert page.files == (("examples/bank.py",) if "files/" in moved else ())


def test_code_stays_as_it_is() -> None:
    text = "```bash\nrows[1](docs/groups.md)\n```\n"
    assert page_of("README.md", text, lambda path: True).text == text


def test_the_navigation_is_the_page_of_all_pages() -> None:
    assert navigation(ROWS) == [
        ("Start", [("Tutorial", "tutorial.md"), ("Ledgermq commands", "cli.md")]),
        ("Understand", [("Architecture", "architecture.md"), ("Decisions", "decisions/index.md")]),
    ]
    with pytest.raises(ValueError, match="no row"):
        navigation("# All pages\n")


def test_a_page_that_no_section_lists_is_named() -> None:
    places = ["index.md", "tutorial.md", "cli.md", "lost.md", "architecture.md", "decisions/0001-a.md"]
    assert missing(navigation(ROWS), places) == ["lost.md"]


def test_what_a_browser_would_fetch_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://example.org/">read</a><script src="assets/a.js"></script><img src="https://example.org/a.png">'
    )
    [found] = asks(tmp_path)
    assert "a.png" in found or "<img" in found


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(site)
    assert "client.queue" in (site / "queues.html").read_text()
    assert (site / "files" / "examples" / "bank_transfer.py").exists()
    assert "put-if-absent" in (site / "search.json").read_text(), "the search has the text of the pages"
