"""Make CHANGELOG.md from the fragments in changes/: one small file for each change that users notice.

    python -m infra.changelog            print what the next release would say
    python -m infra.changelog 0.2.0      write it into CHANGELOG.md as that release, and remove the fragments

A fragment is `changes/NAME.KIND.md`, its kind one of KINDS. Files of one line each never meet in a
merge, as lines of one page do. Two libraries do this. towncrier names fragments by issue and needs
jinja2 and click; scriv names them by branch and needs requests as well. This needs neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
CHANGES = CLONE / "changes"
PAGE = CLONE / "CHANGELOG.md"
HEAD = "# Changes\n\nWhat users notice, by release. What is not released yet is in [changes/](changes/).\n"
KINDS = {
    "breaking": "Programs may have to change",
    "added": "New",
    "changed": "Changed",
    "fixed": "Mended",
    "security": "Security",
}


def fragments(folder: Path) -> dict[str, list[str]]:
    """Return the texts by kind, in order of their names. Raises ValueError for a file that is no fragment."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        name, _, kind = path.name.removesuffix(".md").rpartition(".")
        if not path.name.endswith(".md") or not name or kind not in KINDS:
            raise ValueError(f"changes/{path.name}: call it NAME.KIND.md, KIND one of {', '.join(KINDS)}")
        text = path.read_text().strip()
        if not text or text.startswith(("*", "-", "#")):
            raise ValueError(f"changes/{path.name}: write one paragraph, without a bullet or a heading")
        found[kind].append(text)
    return found


def section(release: str, date: str, texts: dict[str, list[str]]) -> str:
    """Return the section of a release."""
    lines = [f"## {release} ({date})"]
    for kind, title in KINDS.items():
        if texts[kind]:
            lines += ["", f"### {title}", "", *("* " + text.replace("\n", "\n  ") for text in texts[kind])]
    return "\n".join(lines) + "\n"


def with_release(page: str, added: str) -> str:
    """Return the page with a section above the earlier ones. Raises ValueError if the release is there already."""
    title = added.split(" (", maxsplit=1)[0]
    if f"\n{title} (" in page:
        raise ValueError(f"CHANGELOG.md has {title.removeprefix('## ')} already")
    head, mark, rest = page.partition("\n## ")
    return f"{head.rstrip()}\n\n{added}" + (f"\n## {rest}" if mark else "")


def main(arguments: Sequence[str]) -> None:
    try:
        texts = fragments(CHANGES)
        made = section(arguments[0] if arguments else "next", datetime.now(UTC).date().isoformat(), texts)
        if not arguments:
            print(made)
            return
        PAGE.write_text(with_release(PAGE.read_text(), made))
    except ValueError as error:
        sys.exit(str(error))
    for path in CHANGES.glob("*.*.md"):
        path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])
