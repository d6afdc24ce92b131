"""The check of English finds what it is for, in each kind of text, and nothing in code."""

from __future__ import annotations

from pathlib import Path

from infra.plain_english import findings_in

PYTHON = '''\
"""Somebody reads it."""
import typer

NAME = "whoever"  # nobody


def read(path: str) -> None:
    typer.Option(help="Whoever asks")
    if path:
        raise ValueError(f"{path} is keyed no more: it cannot be told whether `whoever` put it")
    raise ValueError("no more than ten files, no more records")
'''


def test_python_is_read_by_kind() -> None:
    found = [(finding.kind, finding.line, finding.pattern) for finding in findings_in(Path("a.py"), PYTHON)]
    assert sorted(found) == [
        ("comment", 4, "nobody"),
        ("docstring", 1, "Somebody"),
        ("error", 10, "cannot be told"),
        ("error", 10, "no more"),
        ("help", 8, "Whoever"),
    ]


def test_markdown_is_read_without_its_code() -> None:
    page = (
        "# Title\n\nIt is\ntold by `nobody`.\n\n```\nnobody\n```\n<!-- somebody -->\n| nobody |\n" + "word " * 21 + "\n"
    )
    found = [(finding.line, finding.pattern) for finding in findings_in(Path("a.md"), page)]
    assert found == [(3, "is told"), (10, "nobody"), (11, "105 columns")]
    assert not findings_in(Path("a.md"), "| " + "word " * 30 + "|\n\n[word](" + "x" * 100 + ")\n")


def test_a_finding_says_where_it_is_and_what_to_write() -> None:
    [finding] = findings_in(Path("a.py"), 'raise ValueError("it exists no more")\n')
    assert str(finding) == "a.py:1: no more → no longer"
