"""Check what a release would publish: `make release-check`. It publishes nothing.

    python -m tests.release.run [FOLDER]     the two distributions and the list of parts stay in FOLDER (dist/)

Each check has a line in the table at the end. Exit status: 1 if one of them failed.

    built twice         two clones of the last commit give the same bytes
    metadata            twine accepts both distributions, README included
    contents            the wheel has its licence, what it declares fits the pages, and its console is the repository's
    change log          CHANGELOG.md has this release, or changes/ has what will stand there
    golden root         the root that later releases have to read (docs/upgrades.md)
    parts               the list of all that an installation consists of (CycloneDX)
    Python 3.11, …      the wheel alone in a fresh environment, with the newest versions of what it needs:
                        README's commands and programs, and the root they leave is clean
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path

from infra.changelog import CHANGES, PAGE, fragments
from infra.pythons import SUPPORTED, find
from tests.docs.pages import blocks_of
from tests.docs.running import Reader
from tests.release.packages import CLONE, UV, build, environment, make_environment, run

TWINE = "twine>=6.1,<7"
STARTS_WITHIN_S = 60.0
README = CLONE / "README.md"
STATIC = "ledgermq_gateway/static/"
"""The console, which `make test-console` proves to be what its sources build."""


def version() -> str:
    return str(tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["version"])


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each distribution of a folder."""
    paths = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def built_twice(folder: Path, scratch: Path) -> str:
    """Build two clones of the last commit in folders of different names; keep the first one's distributions."""
    found = []
    for name in ("first", "a-second-folder"):
        clone = scratch / name
        run(["git", "clone", "--quiet", "--shared", str(CLONE), str(clone)], scratch)
        out = folder if not found else scratch / "again"
        build(clone, out)
        found.append(hashes(out))
    assert len(found[0]) == 2, f"a wheel and a source distribution, and nothing else in {folder}: {list(found[0])}"
    different = [name for name in found[0] if found[0][name] != found[1].get(name)]
    assert not different, f"two builds of one commit differ: {', '.join(different)}"
    return ", ".join(f"{name} {digest[:16]}…" for name, digest in found[0].items())


def metadata(folder: Path) -> str:
    files = [str(folder / name) for name in hashes(folder)]
    run([UV, "tool", "run", "--from", TWINE, "twine", "check", "--strict", *files], folder)
    return "twine check --strict"


def contents(folder: Path) -> str:
    """Compare what the wheel declares with the project, and look for its licence."""
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        console = sorted(name for name in names if name.startswith(STATIC) and not name.endswith("/"))
        assert console == sorted(str(path.relative_to(CLONE)) for path in (CLONE / STATIC).iterdir()), console
        changed = [name for name in console if wheel.read(name) != (CLONE / name).read_bytes()]
        about = HeaderParser().parsestr(
            wheel.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
        )
    assert not changed, f"the wheel has other pages of the console than the repository: {changed}"
    assert about["Version"] == version(), f"the wheel is of version {about['Version']}"
    assert about["Requires-Python"] == f">={SUPPORTED[0]}", about["Requires-Python"]
    assert any(name.endswith("/licenses/LICENSE") for name in names), "the wheel has no licence"
    strange = [name for name in names if name.startswith(("tests/", "infra/", "bench/", "examples/"))]
    assert not strange, f"the wheel has files of the repository: {strange[:3]}"
    return f"version {about['Version']}, {len(names)} files"


def change_log(release: str) -> str:
    if f"\n## {release} (" in PAGE.read_text():
        return f"CHANGELOG.md has {release}"
    count = sum(map(len, fragments(CHANGES).values()))
    assert count, f"CHANGELOG.md has no section {release}, and changes/ is empty"
    return f"{count} fragments wait in changes/: `python -m infra.changelog {release}` makes the section"


def golden_root(release: str) -> str:
    root = CLONE / "tests/golden/roots" / release
    wanted = (root / "expected.json", root / "calls.json", CLONE / f"tests/golden/descriptors/{release}.binpb")
    missing = [str(path.relative_to(CLONE)) for path in wanted if not path.exists()]
    assert not missing, f"`make golden RELEASE={release}` writes {', '.join(missing)}"
    return str(root.relative_to(CLONE))


def parts(folder: Path) -> str:
    listed = folder / f"ledgermq-{version()}.cdx.json"
    run(["make", "sbom", f"SBOM={listed}"], CLONE)
    return listed.name


def readme_runs(interpreter: str, wheel: Path, scratch: Path) -> str:
    """Install the wheel without our lock file, and run README's commands and programs beside its `ledgermq dev`."""
    home, here = scratch / "env", scratch / "here"
    here.mkdir()
    make_environment(home, interpreter, f"{wheel}[broker]")
    log = scratch / "dev.log"
    with log.open("wb") as output:
        command = [str(home / "bin/ledgermq"), "dev", str(here / "ledgermq-data"), "--port", "0"]
        dev = subprocess.Popen(command, cwd=here, env=environment(), stdout=output, stderr=subprocess.STDOUT)
    try:
        address = _address(log, dev)
        reader = Reader(address, here, home / "bin", python=str(home / "bin/python"))
        blocks = [block for block in blocks_of(README) if block.language in ("bash", "python")]
        blocks = [block for block in blocks if not block.not_run and not block.needs_spark]
        assert all(block.language == "bash" or block.is_script for block in blocks), "README has a fragment"
        for block in blocks:
            asyncio.run(reader.run(block))
    finally:
        dev.send_signal(signal.SIGINT)
        code = dev.wait(STARTS_WITHIN_S)
    assert code == 0, log.read_text()
    checked = run([str(home / "bin/ledgermq"), "fsck", str(here / "ledgermq-data")], here)
    assert "clean" in checked, checked
    return f"{len(blocks)} blocks of README"


def _address(log: Path, dev: subprocess.Popen[bytes]) -> str:
    """Return where `ledgermq dev` serves, as it says itself."""
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until and dev.poll() is None:
        for word in log.read_text().split():
            if word.startswith(("localhost:", "127.0.0.1:")):
                return word.rstrip(".,;")
        time.sleep(0.05)
    raise AssertionError(f"`ledgermq dev` did not start:\n{log.read_text()}")


@dataclass
class Results:
    lines: list[str] = field(default_factory=list)
    failed: bool = False

    def check(self, name: str, done: Callable[[], str]) -> bool:
        """Run one check, tell how it ended, and return whether it passed."""
        print(f"=== {name}", flush=True)
        try:
            said = done()
        except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
            print(error, flush=True)
            self.failed, said = True, "FAILED: " + (str(error).splitlines() or [type(error).__name__])[0]
        self.lines.append(f"{name:<14} {said}")
        return not said.startswith("FAILED")


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else "dist").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in hashes(folder):
        (folder / name).unlink()
    results = Results()
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        if results.check("built twice", lambda: built_twice(folder, Path(scratch))):
            results.check("metadata", lambda: metadata(folder))
            results.check("contents", lambda: contents(folder))
            wheel = next(folder.glob("*.whl"))
            for python in SUPPORTED:
                interpreter = find(python)
                if interpreter is None:
                    results.lines.append(f"{'Python ' + python:<14} skipped: there is no such interpreter here")
                    continue
                work = Path(scratch) / python
                work.mkdir()
                results.check(f"Python {python}", lambda i=interpreter, w=work: readme_runs(str(i), wheel, w))  # type: ignore[misc]
    results.check("change log", lambda: change_log(version()))
    results.check("golden root", lambda: golden_root(version()))
    results.check("parts", lambda: parts(folder))
    print("\n".join(results.lines))
    return int(results.failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
