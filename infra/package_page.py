"""Make the description of the packages from README.md: what a package index shows, and `pip show -v`.

There the repository's files are not beside it, so relative links lead nowhere. They become text with the file's
path, which the source distribution has.
"""

from __future__ import annotations

import re

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
NOTE = "\nPaths in parentheses are files of the source distribution.\n"


def description_of(readme: str) -> str:
    """Return the page without relative links; code, and links that begin with a scheme, stay as they are."""
    parts = _FENCED.split(readme)
    return "".join(part if part.startswith("```") else _LINK.sub(_text_of, part) for part in parts) + NOTE


def _text_of(link: re.Match[str]) -> str:
    is_image, text, target = link.groups()
    if "://" in target or target.startswith(("#", "mailto:")):
        return link[0]
    shown = f"{text} ({target.partition('#')[0]})"
    return f"*{shown}*" if is_image else shown
