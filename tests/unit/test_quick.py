"""`make quick` runs the tests of what has changed, the nearest first, and nothing else."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from infra import quick
from infra.quick import chosen, module_of, needs_of

TREE = {
    "tests/unit/test_batch.py": "from ledgermq_ledger.log.batch import Batch",
    "tests/unit/test_writer.py": "from ledgermq_ledger.log import writer",
    "tests/unit/test_reader.py": "import ledgermq_ledger.view.reader",
    "tests/unit/test_page.py": "PAGE = 'docs/design.md'",
    "tests/unit/test_package.py": "import ledgermq_ledger.log",
    "tests/property/test_world.py": "from tests.worlds.ledger import World",
    "tests/worlds/ledger.py": "from tests.worlds import base",
    "tests/worlds/base.py": "from ledgermq_ledger.view.reader import Reader",
    "tests/gateway/test_calls.py": "from ledgermq_gateway.api import table",
    "tests/e2e/test_all.py": "from ledgermq_ledger.log.batch import Batch",
}
NEEDS = {path: needs_of(text) for path, text in TREE.items()}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("ledger/ledgermq_ledger/log/batch.py", ["test_batch.py", "test_package.py", "test_writer.py"]),
        ("ledger/ledgermq_ledger/log/writer.py", ["test_writer.py", "test_batch.py", "test_package.py"]),
        ("ledger/ledgermq_ledger/log/__init__.py", ["test_package.py", "test_writer.py", "test_batch.py"]),
        ("ledger/ledgermq_ledger/view/reader.py", ["test_reader.py", "test_world.py"]),
        ("ledger/ledgermq_ledger/view/index.py", ["test_reader.py", "test_world.py"]),
        ("ledger/ledgermq_ledger/keyed/round.py", []),
        ("tests/worlds/base.py", ["test_world.py"]),
        ("tests/unit/test_page.py", ["test_page.py"]),
        ("docs/design.md", ["test_page.py"]),
        ("docs/other.md", []),
        ("tests/e2e/test_all.py", ["test_all.py"]),
        ("ledgermq_gateway/api/table.py", ["test_calls.py"]),
    ],
)
def test_a_change_chooses_the_tests_of_its_module_and_then_of_its_package(changed: str, tests: list[str]) -> None:
    assert [path.rpartition("/")[2] for path in chosen([changed], NEEDS)] == tests


def test_a_conftest_chooses_all() -> None:
    assert len(chosen(["tests/conftest.py"], NEEDS)) == 6


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("stateless_broker/ledgermq_broker/queues/state/format/x_pb2.py", "ledgermq_broker.queues.state.format.x_pb2"),
        ("ledgermq/client/__init__.py", "ledgermq.client"),
        ("tests/waiting.py", "tests.waiting"),
    ],
)
def test_a_file_has_the_name_by_which_it_is_imported(path: str, module: str) -> None:
    assert module_of(path) == module


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of one commit on main, with nothing changed."""
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_a.py").write_text("def test_a():\n    assert False\n")
    (tmp_path / "page.md").write_text("")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "BASE"):
        monkeypatch.delenv(name, raising=False)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "First"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(quick, "CLONE", tmp_path)
    return tmp_path


def test_without_a_change_it_says_so(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main([]) == 0
    assert capsys.readouterr().out == "nothing differs from main: nothing to test\n"


def test_a_change_without_tests_is_named(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "page.md").write_text("more")
    (clone / "new.md").write_text("")
    assert quick.main([]) == 0
    assert "no test concerns what differs from main: new.md page.md" in capsys.readouterr().out


def test_a_changed_test_runs(clone: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    (clone / "tests/unit/test_a.py").write_text("def test_b():\n    assert False\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    code = quick.main(["-n", "0", "--rootdir", str(clone), "-c", "/dev/null", "-W", "ignore"])
    text = capfd.readouterr().out
    assert code == 1, text
    assert "1 failed" in text


def test_no_test_begins_when_the_time_is_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quick.DEADLINE, str(time.time() + 60))
    quick.pytest_runtest_setup(request.node)
    monkeypatch.setenv(quick.DEADLINE, str(time.time() - 1))
    with pytest.raises(pytest.skip.Exception, match="make test-fast"):
        quick.pytest_runtest_setup(request.node)
