"""A file has at most 400 lines, a function 60, a folder of the product eight loose modules. What was larger when these
bounds came is recorded in infra/sizes.toml, which may only shrink.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.sizes import BOUNDS, Sizes, grown, measure, needless, recorded, why_not_recorded, written


@pytest.fixture(scope="module")
def now() -> Sizes:
    return measure()


def test_nothing_grows_above_its_bound_or_its_record(now: Sizes) -> None:
    assert not grown(now, recorded()), "make it smaller; if it was only moved: python -m infra.sizes --record"


def test_each_row_of_the_record_is_still_needed(now: Sizes) -> None:
    assert not needless(now, recorded()), "take these out: python -m infra.sizes --record"


def test_the_record_is_written_as_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra/sizes.toml").write_text(written(recorded()))
    assert recorded(tmp_path) == recorded()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Each kind just within its bound and just above it."""
    for name, text in {
        "tests/long.py": "x = 1\n" * 401,
        "tests/short.py": "x = 1\n" * 400,
        "ledger/p/generated_pb2.py": "x = 1\n" * 500,
        "bench/functions.py": "class C:\n  async def f():\n    def g():\n" + "      x = 1\n" * 59 + "    y = 2\n",
        **{f"ledger/p/m{number}.py": "" for number in range(9)},
        **{f"ledger/q/m{number}.py": "" for number in range(8)},
        "ledger/q/__init__.py": "",
        **{f"tests/t{number}.py": "" for number in range(20)},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_is_above_its_bound_is_found(clone: Path) -> None:
    assert measure(clone) == {
        "files": {"tests/long.py": 401},
        "functions": {"bench/functions.py::C.f": 62},
        "folders": {"ledger/p": 9},
    }


def test_growth_fails_and_shrinking_does_not() -> None:
    allowed = {"files": {"a.py": 500}, "functions": {}, "folders": {}}
    assert grown({**allowed, "files": {"a.py": 501}}, allowed) == ["a.py has 501, at most 500 are allowed (files)"]
    assert grown({**allowed, "functions": {"a.py::f": 61}}, allowed) == [
        "a.py::f has 61, at most 60 are allowed (functions)"
    ]
    assert grown({**allowed, "files": {"a.py": 499}}, allowed) == []
    assert needless({**allowed, "files": {}}, allowed) == ["a.py"]


@pytest.mark.parametrize(
    ("files", "is_recorded"),
    [
        ({"moved/a.py": 500}, True),
        ({"a.py": 450}, True),
        ({}, True),
        ({"a.py": 501}, False),
        ({"a.py": 401, "b.py": 401}, False),
        ({"a.py": 250, "b.py": 240}, False),
    ],
)
def test_the_record_takes_moves_and_no_growth(files: dict[str, int], is_recorded: bool) -> None:
    allowed = {"files": {"a.py": 500}, "functions": {}, "folders": {}}
    assert (not why_not_recorded({**allowed, "files": files}, allowed)) == is_recorded


def test_the_record_has_no_other_kinds() -> None:
    assert recorded().keys() == BOUNDS.keys()
