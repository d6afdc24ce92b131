"""What type checkers find in programs that use the client: settings, names and results have types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from infra import setting_types

CLONE = Path(__file__).parents[2]
USES = CLONE / "tests" / "unit" / "typed_uses.py"


@pytest.mark.slow
def test_wrong_uses_are_found_and_right_ones_accepted(tmp_path: Path) -> None:
    out, err, _ = api.run(["--strict", "--config-file=", f"--cache-dir={tmp_path}", str(USES)])
    found = {int(number) for number in re.findall(r"typed_uses\.py:(\d+): error", out)}
    wrong = {number for number, line in enumerate(USES.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert wrong, "some uses are wrong"
    assert found == wrong, out + err


def test_the_types_of_settings_are_made_from_their_declarations(tmp_path: Path) -> None:
    made = tmp_path / "setting_types.py"
    made.write_text(setting_types.formatted())
    assert (CLONE / "ledgermq" / "client" / "setting_types.py").read_text() == made.read_text(), "run `make pages`"
