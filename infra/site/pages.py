"""Decide, without touching a file, what the site consists of: where each page of the repository stands there, where its
links lead, and the navigation.

    README.md, ARCHITECTURE.md, …   →  index.md, architecture.md, …
    docs/groups.md                  →  groups.md
    docs/decisions/                 →  decisions/index.md, which lists them
    examples/bank_transfer.py       →  files/examples/bank_transfer.py, a copy, for links that lead to it
    examples/                       →  plain text, as other pages are: a site has no folders
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.package_page import outside_code

FRONT = {
    "README.md": "index.md",
    "docs/README.md": "all-pages.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
"""Pages whose place on the site is not their place below docs/."""
DECISIONS = "docs/decisions"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (?P<section>[a-z]+) \| (?P<links>.*) \|$", re.MULTILINE)

Section = tuple[str, list[tuple[str, str]]]
"""(title, [(title of the page, its place on the site)])"""


@dataclass(frozen=True, slots=True)
class Page:
    """`place`: on the site; `text`: with links of the site; `files`: of the repository, which it links to."""

    place: str
    text: str
    files: tuple[str, ...]


def place_of(source: str) -> str:
    """Return where a page of the repository stands on the site."""
    return FRONT.get(source) or source.removeprefix("docs/")


def page_of(source: str, text: str, is_file: Callable[[str], bool]) -> Page:
    """Return a page of the repository as one of the site. `is_file`: whether a path of the repository is a file; else
    it is a folder.
    """
    place, files = place_of(source), []

    def moved(link: re.Match[str]) -> str:
        mark, shown, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:") or not path:
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if found == DECISIONS:
            there = "decisions/index.md"
        elif found in FRONT or found.startswith("docs/"):
            there = place_of(found)
        elif is_file(found) and not found.endswith(".md"):
            files.append(found)
            there = f"files/{found}"
        else:
            return shown
        return f"{mark}[{shown}]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{hash_sign}{anchor})"

    return Page(place, outside_code(text, lambda part: _LINK.sub(moved, part)), tuple(files))


def navigation(all_pages: str) -> list[Section]:
    """Return the sections of docs/README.md, in its order. Raises ValueError if it has none."""
    found = [(row["section"].capitalize(), list(_listed(row["links"]))) for row in _ROW.finditer(all_pages)]
    if not found:
        raise ValueError("docs/README.md has no row with a section and its pages")
    return found


def _listed(links: str) -> Iterator[tuple[str, str]]:
    for _, title, target in _LINK.findall(links):
        found = posixpath.normpath(posixpath.join("docs", target))
        title = title.replace("`", "")
        yield title[0].upper() + title[1:], "decisions/index.md" if found == DECISIONS else place_of(found)


def decisions_index(titles: Mapping[str, str]) -> str:
    """Return the page that lists the decisions. `titles`: by their file's name."""
    rows = [f"* [{title}]({name})" for name, title in sorted(titles.items())]
    return "\n".join(
        ["# Decisions", "", "Why things are as they are, in the order in which it was decided.", "", *rows, ""]
    )


def title_of(text: str) -> str:
    """Return the first heading of a page. Raises ValueError if it has none."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"a page without a heading: {text[:60]!r}")
    return found[1]


def missing(sections: Sequence[Section], places: Sequence[str]) -> list[str]:
    """Return the pages that no section lists; decisions stand on a page of their own."""
    listed = {place for _, pages in sections for _, place in pages} | {"index.md", "all-pages.md", "reporting.md"}
    return sorted(place for place in places if place not in listed and not place.startswith("decisions/"))
