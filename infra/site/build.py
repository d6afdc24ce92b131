"""Build the site: `python -m infra.site.build [FOLDER]`, by default build/site.

Zensical turns the pages into HTML with a search that needs no server, and checks every link and anchor; codespell
reads the pages first. A warning of either fails the build. The theme asks no other host for anything: that is checked.

Zensical, because Material for MkDocs, whose makers it comes from, gets repairs of security alone. Sphinx with MyST is
the alternative if it should end: these pages use nothing that is Zensical's.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from infra.site.pages import (
    DECISIONS,
    FRONT,
    Section,
    decisions_index,
    missing,
    navigation,
    page_of,
    place_of,
    title_of,
)

CLONE = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("zensical.toml")
STYLE = Path(__file__).with_name("site.css")
WORDS = Path(__file__).with_name("words.txt")
ASKS = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["']?(https?:)?//(?![^"'>]*localhost)""")
"""What a browser would fetch from another host by itself. A link that a reader follows is no such thing."""


def write_pages(docs: Path) -> list[Section]:
    """Write the pages of the site, its pictures, and the files that pages link to, below `docs`."""
    sources = [*FRONT, *(str(each.relative_to(CLONE)) for each in sorted((CLONE / "docs").rglob("*.md")))]
    titles, places = {}, []
    for source in dict.fromkeys(sources):
        text = (CLONE / source).read_text()
        page = page_of(source, text, lambda path: (CLONE / path).is_file())
        _write(docs / page.place, page.text)
        places.append(page.place)
        for file in page.files:
            (docs / "files" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CLONE / file, docs / "files" / file)
        if source.startswith(f"{DECISIONS}/"):
            titles[source.removeprefix(f"{DECISIONS}/")] = title_of(text)
    _write(docs / "decisions" / "index.md", decisions_index(titles))
    shutil.copytree(CLONE / "docs" / "images", docs / place_of("docs/images"))
    shutil.copyfile(STYLE, docs / STYLE.name)
    sections = navigation((CLONE / "docs" / "README.md").read_text())
    if lost := missing(sections, places):
        raise SystemExit(f"docs/README.md lists all pages, but not these: {', '.join(lost)}")
    return sections


def config_of(sections: list[Section]) -> str:
    """Return the configuration of Zensical with the navigation."""
    lines = ['  { "LedgerMQ" = "index.md" },']
    for title, pages in sections:
        listed = ", ".join(f'{{ "{name}" = "{place}" }}' for name, place in pages)
        lines.append(f'  {{ "{title}" = [{listed}] }},')
    return CONFIG.read_text().replace("#NAVIGATION", "\n".join(lines))


def build(site: Path) -> None:
    """Build the site into a folder, which is replaced. Raises SystemExit with what is wrong."""
    spelled = [sys.executable, "-m", "codespell_lib", "--ignore-words", str(WORDS)]
    pages = [*(str(CLONE / source) for source in FRONT if "/" not in source), str(CLONE / "docs")]
    if subprocess.run([*spelled, "--skip", "*.png", *pages], check=False).returncode:
        raise SystemExit("words that look misspelt; those that are right go into infra/site/words.txt")
    with tempfile.TemporaryDirectory(prefix="ledgermq-site-") as made:
        folder = Path(made)
        sections = write_pages(folder / "docs")
        _write(folder / "zensical.toml", config_of(sections))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        if subprocess.run(command, cwd=folder, env=os.environ | {"NO_COLOR": "1"}, check=False).returncode:
            raise SystemExit("the site was not built: see above")
        if asking := sorted(asks(folder / "site")):
            raise SystemExit(f"the site asks other hosts for something: {'; '.join(asking[:5])}")
        shutil.rmtree(site, ignore_errors=True)
        site.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "site", site)


def asks(site: Path) -> set[str]:
    """Return what the pages would fetch from other hosts by themselves."""
    return {found[0] for page in site.rglob("*.html") for found in ASKS.finditer(page.read_text())}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=CLONE / "build" / "site")
    folder = parser.parse_args().folder
    build(folder)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main()
