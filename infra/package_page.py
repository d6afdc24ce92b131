"""Make the description of the packages from README.md: what a package index shows, and `pip show -v`.

There the repository's files are not beside it, so relative links lead nowhere. They become text with the file's
path, which the source distribution has.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
NOTE = "\nPaths in parentheses are files of the source distribution.\n"


def description_of(readme: str) -> str:
    """Return the page without relative links; code, and links that begin with a scheme, stay as they are."""
    return outside_code(readme, lambda text: _LINK.sub(_text_of, text)) + NOTE


def outside_code(page: str, changed: Callable[[str], str]) -> str:
    """Return a page with its text changed, and its blocks of code as they are."""
    return "".join(part if part.startswith("```") else changed(part) for part in _FENCED.split(page))


def _text_of(link: re.Match[str]) -> str:
    is_image, text, target = link.groups()
    if "://" in target or target.startswith(("#", "mailto:")):
        return link[0]
    shown = f"{text} ({target.partition('#')[0]})"
    return f"*{shown}*" if is_image else shown
