"""What an installation brings: the client alone stays small, and every entry point leads somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, entry_points, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from infra.package_page import description_of

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SERVER_SIDE = {
    "pyspark",
    "obstore",
    "botocore",
    "boto3",
    "hdfs-native",
    "urllib3",
    "pandas",
    "pydantic-settings",
    "aiohttp",
    "prometheus-client",
    "structlog",
    "uvloop",
}
"""Distributions that are not installed with the client alone."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(names: set[str]) -> set[str]:
    """The distributions that these need, themselves included, without extras."""
    found: set[str] = set()
    while names:
        name = names.pop()
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                names.add(normal(requirement.name))
    return found


def test_every_locked_package_takes_the_oldest_python_that_we_name() -> None:
    """`make lock` asks a later Python; Debian 12 has 3.11.2, and pip refused one package there."""
    locked = re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    oldest = PYPROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    assert len(locked) > 100
    for name, version in locked:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # it is for another system
        assert found.version == version, f"{name} is installed as {found.version}, and locked as {version}: make setup"
        needs = found.metadata.get("Requires-Python") or ""
        assert SpecifierSet(needs).contains(oldest), f"{name} {version} needs Python {needs}"


def test_the_client_needs_neither_spark_nor_a_store_client() -> None:
    client = closure({"ledgermq"})
    assert "grpcio" in client
    assert not client & SERVER_SIDE


def test_the_metadata_are_those_of_pyproject() -> None:
    """An environment that was not set up again after a change would make the other tests look at
    the past.
    """
    installed = {str(Requirement(text)) for text in distribution("ledgermq").requires or () if "extra ==" not in text}
    assert installed == {str(Requirement(text)) for text in PYPROJECT["project"]["dependencies"]}


def test_the_description_of_the_package_has_no_link_that_leads_nowhere() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "](docs/tutorial.md)" in readme
    description = description_of(readme)
    assert not re.search(r"\]\((?!https?://)", description), "a package index has no files beside the page"
    assert "The tutorial (docs/tutorial.md) takes twenty minutes" in description
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    assert code.findall(description) == code.findall(readme)
    page = "[a\nb](x.md#part) ![c](d.png) [e](https://example.org/f)"
    assert description_of(page).startswith("a\nb (x.md) *c (d.png)* [e](https://example.org/f)\n")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "module",
    [
        "ledgermq",
        "ledgermq.sync",
        "ledgermq.cli.admin.topic",
        "ledgermq.cli.messages.produce",
        "ledgermq.cli.messages.consume",
    ],
)
def test_importing_the_client_loads_no_server_package(module: str) -> None:
    unwanted = [
        "pyspark",
        "botocore",
        "boto3",
        "obstore",
        "hdfs_native",
        "pandas",
        "ledgermq_ledger",
        "ledgermq_broker",
        "ledgermq_spark",
    ]
    done = python(f"import sys, {module}; print(*sorted(set({unwanted}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


WITHOUT_EXTRAS = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from ledgermq.cli.main import main
sys.argv = ["ledgermq", *ARGUMENTS]
main()
"""


def without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line where nothing but the client's own dependencies can be imported."""
    client = closure({"ledgermq"})
    missing = {
        module
        for module, owners in packages_distributions().items()
        if not {normal(owner) for owner in owners} & client
    }
    code = f"MISSING = {missing!r}\nARGUMENTS = {arguments!r}\n{WITHOUT_EXTRAS}"
    return python(code)


def test_the_command_line_works_with_the_client_alone() -> None:
    done = without_extras("topic", "--help")
    assert done.returncode == 0, done.stderr
    assert "create" in done.stdout


@pytest.mark.parametrize(
    "command", ["dev", "broker", "compactor", "config", "top", "compact", "inspect", "fsck", "gc", "repair"]
)
def test_a_command_of_a_missing_extra_says_what_to_install(command: str) -> None:
    done = without_extras(command, "--help")
    assert done.returncode == 1
    assert "pip install 'ledgermq[broker]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_of_offsets_without_its_library_says_what_to_install() -> None:
    done = python("import sys; sys.modules['sqlalchemy'] = None; import ledgermq.offset_stores.sql")
    assert 'SqlOffsetStore needs SQLAlchemy: pip install "ledgermq[sql]"' in done.stderr.splitlines()[-1]


def test_the_client_alone_has_no_command_of_an_entry_points_name() -> None:
    done = without_extras("ledger")
    assert done.returncode == 2
    assert "No such command 'ledger'" in done.stderr


@pytest.mark.parametrize("group", ["ledgermq.commands", "ledgermq.engines", "ledgermq.embedded", "console_scripts"])
def test_every_entry_point_leads_somewhere(group: str) -> None:
    found = [entry for entry in entry_points(group=group) if entry.dist is not None and entry.dist.name == "ledgermq"]
    assert found
    for entry in found:
        assert callable(entry.load())


def test_every_package_is_in_the_wheel() -> None:
    found = [*ROOT.glob("*/__init__.py"), *ROOT.glob("*/*/__init__.py")]
    packages = {str(path.parent.relative_to(ROOT)) for path in found if not (path.parents[1] / "__init__.py").exists()}
    listed = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package for package in packages if "ledgermq" in package} == set(listed)


def test_the_lock_file_pins_and_names_no_host() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert "--find-links" not in lock
    assert "--index-url" not in lock
    pins = {normal(line.split("==")[0]) for line in lock.splitlines() if re.match(r"[A-Za-z0-9]", line)}
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = [
        *PYPROJECT["project"]["dependencies"],
        *(text for name in ("broker", "s3", "spark", "demo", "dev") for text in extras[name]),
    ]
    assert {normal(Requirement(text).name) for text in wanted} - {"ledgermq"} <= pins


def test_make_help_lists_every_command() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    assert set(targets[1].split()) <= set(re.findall(r"make ([a-z-]+)", done.stdout))
