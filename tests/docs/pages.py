"""The fenced code blocks of README.md and docs/, and how each of them is run or checked.

An HTML comment right above a block says what is special about it; readers of the page do not see
it:

    <!-- test: not run, REASON -->       it cannot run here; its syntax is checked, and that its
                                         commands, options and targets exist
    <!-- test: until TEXT, REASON -->    it never ends: a script is stopped when it prints TEXT, a
                                         fragment when it calls it (`print x2`: the second time)
    <!-- test: save as NAME -->          a file in the reader's folder, which later blocks use

markdown-it-py, which the lock file has anyway, finds the blocks. mktestdocs and sybil run Python
blocks too, but neither runs blocks with `await` at their top, stops those that never end, nor
checks what it cannot run; that is most of this package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

CLONE = Path(__file__).parents[2]
PAGES = [CLONE / "README.md", *sorted((CLONE / "docs").glob("*.md"))]
LANGUAGES = {"bash", "python", "toml", "json", "yaml", ""}
_MARK = re.compile(r"<!-- test: (?:(not run)|until ([^,]+)|save as (\S+)|([^,]*)),? ?(.*) -->\s*\Z")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of its first line of code, from 1."""
    language: str
    text: str
    not_run: bool = False
    until: str = ""
    reason: str = ""
    saved_as: str = ""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(CLONE)}:{self.line}"

    @property
    def needs_spark(self) -> bool:
        return (
            self.language == "python"
            and re.search(r"\bspark\b|\.writeStream\b", re.sub(r"#.*", "", self.text)) is not None
        )

    @property
    def is_script(self) -> bool:
        """It is a program of its own, and no fragment of one; or needs a process of its own
        (tests/unit/parquet/duckdb_process.py).
        """
        return any(text in self.text for text in ("asyncio.run(", "signal.signal(", "import duckdb"))


def blocks_of(page: Path) -> list[Block]:
    found = []
    before = ""
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "fence":
            assert token.map is not None
            mark = _MARK.match(before)
            assert mark is not None or "test:" not in before, f"{page}:{token.map[0]}: cannot read {before!r}"
            not_run, until, saved_as, text, rest = mark.groups() if mark else (None, None, None, "", "")
            found.append(
                Block(
                    page,
                    token.map[0] + 2,
                    token.info.strip(),
                    token.content,
                    not_run=not_run is not None,
                    until=until or "",
                    reason=text or rest,
                    saved_as=saved_as or "",
                )
            )
        if token.nesting == 0:
            before = token.content if token.type == "html_block" else ""
    return found


ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]
