"""Find the worst patterns of unclear English, and Markdown prose that is too wide.

    python infra/plain_english.py             print each finding, exit 1 if there is one
    python infra/plain_english.py --report    count the findings by room and kind, docstrings and comments included

A finding is one line: `file:line: pattern → replacement`. Four kinds of text are read:

    error       string literals within `raise`
    help        `help=` and `description=` of commands, options and settings
    markdown    prose of README.md, CONTRIBUTING.md, ARCHITECTURE.md and docs/, without code and tables
    docstring, comment    of the packages in ROOMS; --report counts those of ROOMS_REPORTED, too

Text within `backticks` is never a finding, so that a page can name a pattern. Generated pages are
not read: their words come from the code.

Linters of prose (vale, proselint) exist, but they neither tell an error message from any other
string of Python nor come as a small package; this needs the standard library alone.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
ROOMS = ("ledger", "ledgermq", "ledgermq_gateway", "ledgermq_tools", "offsets", "spark", "stateless_broker")
ROOMS_REPORTED = (*ROOMS, "bench", "examples", "infra", "tests")
NOT_READ = {"settings.md", "metrics.md", "performance.md", "sizing.md", "api.md", "bugs-found.md"}
"""Generated pages, and a record of the past, whose rows stay as they were written."""
PROSE_COLUMNS = 100

REPLACEMENTS = {
    r"who(?:m)?ever": "the caller, broker or reader that …",
    r"somebody|someone": "another process, the caller, an operator: name it",
    r"nobody|no one": "no broker, no reader, no process: name it",
    r"can ?not be told": "is unknown",
    r"(?:is|are|was|were|been|being|(?<!not )(?<!cannot )be) told": "is notified, receives, is given",
    r"what is told": "name it: the answer, the message, the position",
    r"tells? of|tells (?:what|that|when|how|whether)": "logs, reports, returns or shows",
    r"hears": "receives, is notified",
    r"(?:gives|giving) up": "stops retrying, fails",
    r"of (?:its|their|his|one's) own": "its own …, a separate …",
    r"(?<=\w )no more(?! than\b| \w+s\b)": "no longer",
    r"for ever": "forever, without end",
    r"amid": "inside, in the middle of",
    r"anew": "again",
    r"(?:is|are|was|were) put out": "is removed",
    r"(?<=[.;:] )Who \w+s\b": "A caller, broker or reader that …",
}
_PATTERNS = [
    (re.compile(rf"\b(?:{pattern})\b" if not pattern.startswith("(?<=") else pattern, re.IGNORECASE), better)
    for pattern, better in REPLACEMENTS.items()
]
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    kind: str
    pattern: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.pattern} → {self.replacement}"


@dataclass(frozen=True)
class Text:
    """Prose of one kind that begins at a line."""

    kind: str
    line: int
    text: str


def findings_in(path: Path, content: str) -> list[Finding]:
    """Return the findings of one file of Python or Markdown, by line."""
    texts = texts_of_markdown(content) if path.suffix == ".md" else texts_of_python(content)
    found = [finding for text in texts for finding in _findings_of(path, text)]
    if path.suffix == ".md":
        found += _too_wide(path, content)
    return sorted(found, key=lambda finding: finding.line)


def _findings_of(path: Path, text: Text) -> Iterator[Finding]:
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text.text)
    for pattern, better in _PATTERNS:
        for match in pattern.finditer(re.sub(r"\n", " ", prose)):
            line = text.line + prose.count("\n", 0, match.start())
            yield Finding(path, line, text.kind, " ".join(match[0].split()), better)


def texts_of_python(content: str) -> list[Text]:
    tree = ast.parse(content)
    found: list[Text] = []
    errors = {id(literal) for node in ast.walk(tree) if isinstance(node, ast.Raise) for literal in _literals(node)}
    helps = {
        id(literal)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in ("help", "description")
        for literal in _literals(node.value)
    }
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for kind, chosen in (("error", errors), ("help", helps), ("docstring", prose)):
                if id(node) in chosen:
                    found.append(Text(kind, node.lineno, node.value))
                    break
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    return found + [Text("comment", token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def _literals(node: ast.AST) -> Iterator[ast.Constant]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str))


def texts_of_markdown(content: str) -> list[Text]:
    """Each paragraph; blocks of code and comments of HTML are left out, cells of tables are not."""
    found: list[Text] = []
    paragraph: list[str] = []
    lines = _prose_lines(content)
    for number, line in [*lines, (len(content.splitlines()) + 1, "")]:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            found.append(Text("markdown", number - len(paragraph), "\n".join(paragraph)))
            paragraph = []
    return found


def _prose_lines(content: str) -> list[tuple[int, str]]:
    """Every line by its number; those of code and of comments are empty."""
    found: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(content.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        found.append((number, "" if fenced or fence or line.lstrip().startswith("<!--") else line))
        fenced ^= fence
    return found


def _too_wide(path: Path, content: str) -> Iterator[Finding]:
    for number, line in _prose_lines(content):
        if (
            " " in line.strip()
            and len(_CODE.sub("", line)) > PROSE_COLUMNS
            and not line.lstrip().startswith(("|", "#"))
            and "](" not in line
        ):
            yield Finding(path, number, "markdown", f"{len(line)} columns", f"wrap prose at {PROSE_COLUMNS}")


def files(report: bool) -> Iterator[Path]:
    for page in [CLONE / "README.md", CLONE / "CONTRIBUTING.md", CLONE / "ARCHITECTURE.md"]:
        if page.exists():
            yield page
    yield from (page for page in sorted((CLONE / "docs").rglob("*.md")) if page.name not in NOT_READ)
    for room in ROOMS_REPORTED if report else ROOMS:
        yield from (path for path in sorted((CLONE / room).rglob("*.py")) if not path.stem.endswith("_pb2"))


def room_of(path: Path) -> str:
    """The folder that a person would call a room: at most two levels."""
    return "/".join(path.parts[:-1][:2]) or str(path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Find unclear English in errors, help texts and pages.")
    parser.add_argument("--report", action="store_true", help="count by room and kind; the exit status is 0")
    options = parser.parse_args()
    found: list[Finding] = []
    for path in files(options.report):
        found += findings_in(path.relative_to(CLONE), path.read_text())
    if options.report:
        counts = Counter((room_of(finding.path), finding.kind) for finding in found)
        for room in sorted({room for room, _ in counts}):
            kinds = {kind: count for (of, kind), count in sorted(counts.items()) if of == room}
            print(f"{room:40} " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
        return 0
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
