"""The tables of options in docs/spark.md say what the code declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

import pytest

from ledgermq_spark.options import fields_of, option_name
from ledgermq_spark.sink.options import SinkOptions
from ledgermq_spark.source.options import GivenOptions
from ledgermq_tools.broker.settings_page import line_of, meanings_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
UNSET = (MISSING, None, "", ())


def _default(field: Field[Any]) -> str:
    if field.metadata["shown"] or field.default in UNSET:
        return str(field.metadata["shown"])
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _table(kind: Any) -> Iterator[str]:
    meanings = meanings_of(kind)
    yield "| option | default | |\n|---|---|---|"
    for field in fields_of(kind):
        default = _default(field)
        yield line_of((f"`{option_name(field.name)}`", default, meanings[field.name])).replace("|  |", "| |")


@pytest.mark.parametrize("kind", [GivenOptions, SinkOptions])
def test_the_page_has_every_option_with_its_default_and_meaning(kind: Any) -> None:
    table = "\n".join(_table(kind))
    assert f"\n{table}\n\n" in PAGE.read_text(encoding="utf-8"), f"docs/spark.md needs this table:\n{table}"
