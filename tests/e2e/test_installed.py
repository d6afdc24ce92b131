"""The package as users have it: a wheel in a fresh environment, and a source distribution.

Tests of a clone cannot see what is missing there, because the clone's folders are on their search
path. The programs run in a folder of a user's whose files have the plainest names.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

from infra.package_page import description_of
from tests.docs.pages import blocks_of
from tests.release.packages import CLONE, build, make_environment, pip, run

TOP_LEVEL = {
    "ledgermq",
    "ledgermq_ledger",
    "ledgermq_offsets",
    "ledgermq_broker",
    "ledgermq_spark",
    "ledgermq_gateway",
    "ledgermq_tools",
    "pyspark_ledgermq",
}
DECOYS = ("ledger", "spark", "security", "offsets", "transactions", "timers", "broker", "infra", "tests")
"""Files of a user's program: what LedgerMQ's packages were called once, and what a clone has."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both distributions. The wheel is built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build(CLONE, folder)
    return folder


def wheel_of(built: Path) -> Path:
    return next(built.glob("*.whl"))


@dataclass(frozen=True)
class Installed:
    """An environment that has the wheel, and the folder in which the user works."""

    home: Path
    work: Path

    def python(self, file: str, text: str, *arguments: str, seconds: float = 300) -> str:
        """Run a program of the user's."""
        (self.work / file).write_text(text)
        return run([str(self.home / "bin" / "python"), file, *arguments], self.work, seconds)

    def command(self, *arguments: str) -> str:
        return run([str(self.home / "bin" / "ledgermq"), *arguments], self.work, 300)

    def pip(self, command: str, *arguments: str) -> None:
        pip(self.home, command, *arguments)


def _install(folder: Path, wheel: Path, extras: str) -> Installed:
    """Make an environment with the locked versions of what the wheel needs, and a folder with the decoys."""
    home, work = folder / "env", folder / "work"
    work.mkdir()
    make_environment(home, sys.executable, "--constraints", str(CLONE / "requirements.lock"), f"{wheel}[{extras}]")
    installed = Installed(home, work)
    for name in DECOYS:
        (work / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the user was imported')\n")
    return installed


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return _install(tmp_path_factory.mktemp("user"), wheel_of(built), "broker")


def ten_lines(target: str) -> str:
    """Return README's first program, with its target replaced."""
    text = next(block.text for block in blocks_of(CLONE / "README.md") if "asyncio.run(main())" in block.text)
    assert '"localhost:9650"' in text
    return text.replace("localhost:9650", target)


def test_the_wheel_brings_these_top_level_modules_alone(built: Path) -> None:
    with zipfile.ZipFile(wheel_of(built)) as wheel:
        tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == TOP_LEVEL


def test_a_package_index_can_show_what_the_wheel_says_of_itself(built: Path) -> None:
    with zipfile.ZipFile(wheel_of(built)) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(wheel.read(name))
    assert said["Author"] == "LedgerMQ maintainers"
    assert said["Description-Content-Type"].startswith("text/markdown")
    text = said.get_payload(decode=True)
    assert isinstance(text, bytes)
    assert text.decode().rstrip() == description_of((CLONE / "README.md").read_text()).rstrip()


def test_readmes_program_and_the_command_line_beside_a_users_files(installed: Installed) -> None:
    target = (installed.work / "root").as_uri()
    printed = installed.python("accounts.py", ten_lines(target))
    assert len(printed.splitlines()) == 1 + 1001  # the place of the first record, then every message
    assert installed.command("--version").startswith("ledgermq ")
    lines = installed.command("consume", "orders", "--until-end", "--target", target)
    assert len(lines.splitlines()) == 1001
    assert "clean" in installed.command("fsck", target)


def test_a_package_of_another_project_neither_overwrites_nor_removes_anything(installed: Installed) -> None:
    """PyPI has a package `security`, whose uninstall once deleted a file of ours."""
    target = (installed.work / "second-root").as_uri()
    try:
        installed.pip("install", "--quiet", "--no-deps", "security")
    except AssertionError as error:
        if "network" in str(error) or "dns" in str(error).lower() or "fetch" in str(error).lower():
            pytest.skip("the package `security` cannot be fetched here")
        raise
    installed.python("accounts.py", ten_lines(target))
    installed.pip("uninstall", "--quiet", "security")
    installed.python("accounts.py", ten_lines((installed.work / "third-root").as_uri()))


def test_a_file_of_the_user_that_hides_a_library_is_named(installed: Installed) -> None:
    hiding = installed.work / "structlog.py"
    hiding.write_text("")
    try:
        text = "import ledgermq\nwith ledgermq.sync.connect('memory://x') as client:\n    client.list_topics()\n"
        with pytest.raises(AssertionError) as raised:
            installed.python("accounts.py", text)
    finally:
        hiding.unlink()
    printed = [line.strip() for line in str(raised.value).splitlines()]  # pytest indents the message of an assertion
    last = next(line for line in printed if line.startswith("ledgermq.errors.InvalidConfig: "))
    assert f"{hiding} hides the module structlog at " in last
    assert "rename it" in last
    assert "pip install" not in last


@pytest.mark.spark
def test_spark_in_a_script_named_spark(built: Path, tmp_path: Path) -> None:
    """The source by its name, and the compaction job as a module and as a script of the installed package."""
    user = _install(tmp_path, wheel_of(built), "broker,spark")
    root = user.work / "root"
    user.python("accounts.py", ten_lines(root.as_uri()))
    counting = (
        "import os, sys\n"
        "from pyspark.sql import SparkSession\n"
        "os.environ['PYSPARK_PYTHON'] = sys.executable\n"
        "spark = SparkSession.builder.master('local[1]').getOrCreate()\n"
        f"rows = spark.read.format('ledgermq').option('root', {root.as_uri()!r}).option('topic', 'orders').load()\n"
        "print('rows:', rows.count())\n"
    )
    assert "rows: 1001" in user.python("spark.py", counting, seconds=900)
    python = str(user.home / "bin" / "python")
    assert '"records": 1001' in run([python, "-m", "ledgermq_spark.job", root.as_uri(), "--output", "json"], user.work)
    script = next(user.home.glob("lib/python3.*/site-packages/ledgermq_spark/job.py"))
    submit = str(user.home / "bin" / "spark-submit")
    variables = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    assert '"records": 0' in run([submit, str(script), root.as_uri(), "--output", "json"], user.work, **variables)


def test_the_source_distribution_is_the_repository(built: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=CLONE, capture_output=True, text=True, timeout=60, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no clone: git does not list its files")
    with tarfile.open(next(built.glob("*.tar.gz"))) as packed:
        names = {member.name.partition("/")[2] for member in packed.getmembers() if not member.isdir()}
    there = {name for name in listed.stdout.splitlines() if (CLONE / name).exists()}
    assert there - names == set()


def test_make_setup_works_in_the_source_distribution(built: Path, tmp_path: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(["make", "setup"], source, 1200)
    assert run([str(source / ".venv" / "bin" / "ledgermq"), "--version"], tmp_path).startswith("ledgermq ")
    program = "import ledgermq_broker.embedded as found; print(found.__file__)"
    assert run([str(source / ".venv" / "bin" / "python"), "-c", program], tmp_path).startswith(str(source))
    shutil.rmtree(source / ".venv")
