"""Each call that docs/spark.md has under "Damaged bytes" refuses a file with a flipped bit in its
pages, or reads the right rows.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ledgermq.cli.main import build
from tests.docs.pages import CLONE, blocks_of
from tests.worlds.filled_root import fill_root

NAMES = ["dataset", "pyarrow", "pandas", "polars", "duckdb"]


def documented() -> tuple[str, dict[str, str]]:
    """The lines that prepare, and each call by its reader, as the page has them."""
    (text,) = (block.text for block in blocks_of(CLONE / "docs" / "spark.md") if "by_pyarrow = " in block.text)
    calls = dict(re.findall(r"^by_(\w+) = (.*?)(?: +#.*)?$", text, re.MULTILINE))
    return re.sub(r"^by_.*\n", "", text, flags=re.MULTILINE), calls


def flip(folder: str, every: int) -> dict[str, dict[str, int]]:
    """Read the only file below `folder`/ledgermq-data/parquet with one bit of its pages flipped,
    `every` so many bits, by each call.
    """
    (file,) = Path(folder, "ledgermq-data", "parquet").rglob("*.parquet")
    good = file.read_bytes()
    pages = end_of_pages(file)
    prepare, calls = documented()
    calls["unchecked"] = 'pyarrow.parquet.read_table("ledgermq-data/parquet", partitioning=None)'
    found = {name: Counter[str]() for name in calls}
    names: dict[str, Any] = {}

    def read(call: str) -> str:
        exec(prepare, names)
        return rows_of(eval(call, names))

    expected = {name: read(call) for name, call in calls.items()}
    for bit in range(4 * 8, pages * 8, every):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bad)
        for name, call in calls.items():
            try:
                found[name]["right" if read(call) == expected[name] else "wrong"] += 1
            except (Exception, BaseExceptionGroup):
                found[name]["refused"] += 1
    file.write_bytes(good)
    return {name: dict(counts) for name, counts in found.items()}


def end_of_pages(file: Path) -> int:
    """Where the page index and the footer begin."""
    groups = pq.read_metadata(file)
    columns = [
        groups.row_group(group).column(at) for group in range(groups.num_row_groups) for at in range(groups.num_columns)
    ]
    return max(
        (column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size for column in columns
    )


def rows_of(answer: Any) -> str:
    if hasattr(answer, "to_pylist"):
        return repr(answer.to_pylist())
    return repr(
        answer.to_dict("list")
        if hasattr(answer, "itertuples")
        else answer.rows()
        if hasattr(answer, "rows")
        else answer
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flips")
    asyncio.run(fill_root(folder / "ledgermq-data"))
    assert CliRunner().invoke(build(), ["compact", str(folder / "ledgermq-data")]).exit_code == 0
    return folder


@pytest.mark.slow
def test_no_flipped_bit_gives_wrong_rows_by_the_documented_calls(here: Path) -> None:
    """In a separate process: damaged files may end one, and DuckDB has to have one
    (tests/unit/parquet/duckdb_process.py).
    """
    environment_path = f"import sys; sys.path.insert(0, {str(CLONE)!r})"
    code = (
        f"{environment_path}; from tests.unit.parquet.test_flipped_bits import flip; import json;"
        " print(json.dumps(flip('.', 23)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found) == {*NAMES, "unchecked"}
    assert found.pop("unchecked")["wrong"] > 0, "without verification some flips go unseen, or this test shows nothing"
    for name, counts in found.items():
        assert counts["refused"] > 100, name
        assert "wrong" not in counts, name
