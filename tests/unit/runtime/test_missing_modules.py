"""Advice about a failed import: install an extra only where it is missing; name the file that hides a module."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ledgermq.runtime.process.missing_modules import OWN, what_to_do

INSTALL = 'pip install "ledgermq[broker]"'


def failed(code: str, folder: Path) -> str:
    """Run an import in a separate process, where `folder` comes first, and return the advice about its error."""
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from ledgermq.runtime.process.missing_modules import what_to_do\n"
        f"try:\n    {code}\nexcept (ImportError, AttributeError) as error:\n    print(what_to_do(error, {INSTALL!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_what_is_not_installed_is_to_be_installed(tmp_path: Path) -> None:
    assert failed("import no_such_module", tmp_path) == f"{INSTALL} (No module named 'no_such_module')"


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("aiohttp.py", "from aiohttp.web import Application"),
        ("aiohttp.py", "from aiohttp import ClientSession"),
        ("aiohttp/__init__.py", "import aiohttp.web"),
        ("decimal.py", "from decimal import Decimal"),
        ("aiohttp.py", "import aiohttp; aiohttp.ClientSession"),
        ("ledgermq_broker.py", "import ledgermq_broker.embedded"),
    ],
)
def test_a_file_that_hides_a_module_is_named(tmp_path: Path, file: str, code: str) -> None:
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    advice = failed(code, tmp_path)
    assert advice.startswith(f"{hiding} hides the module {file.split('/', maxsplit=1)[0].removesuffix('.py')} at ")
    assert "rename it, or start Python in another folder" in advice
    assert "pip install" not in advice


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "aiohttp").mkdir()
    assert "hides" not in failed("from aiohttp import no_such_name", tmp_path)


def test_what_is_there_and_does_not_load_is_to_be_installed_again(tmp_path: Path) -> None:
    advice = failed("from aiohttp import no_such_name", tmp_path)
    assert advice.startswith("aiohttp is installed, but cannot be loaded; install it again: ")
    assert 'pip install --force-reinstall "ledgermq[broker]"' in advice


def test_an_error_without_a_name_and_a_missing_part_of_our_own() -> None:
    advice = what_to_do(ImportError("libstdc++.so.6: cannot open shared object file"), INSTALL)
    assert advice.startswith("what it needs is installed, but cannot be loaded")
    own = ModuleNotFoundError("No module named 'ledgermq_ledger.log'", name="ledgermq_ledger.log")
    assert what_to_do(own, INSTALL).startswith("the installation of LedgerMQ is damaged")


def test_a_fault_of_our_own_is_not_taken_for_a_failed_import() -> None:
    with pytest.raises(AttributeError):
        what_to_do(AttributeError("module 'ledgermq' has no attribute 'x'", name="x", obj=sys), INSTALL)


def test_the_names_are_those_of_the_wheel() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).name for package in packages} == OWN
