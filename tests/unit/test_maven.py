"""Jars are fetched once, and again when their list has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra import maven

MVN = """\
#!/bin/sh
for word in "$@"; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
mkdir -p "$folder" && touch "$folder/$(cat "$(dirname "$0")/jar")"
"""


def test_a_changed_list_replaces_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mvn").write_text(MVN)
    (tmp_path / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(maven, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(maven, "POMS", tmp_path)
    pom, jar = tmp_path / "some.pom.xml", tmp_path / "jar"

    def fetched() -> list[str]:
        return sorted(path.name for path in maven.jars("some").glob("*.jar"))

    pom.write_text("<project>1</project>")
    jar.write_text("one.jar")
    assert fetched() == ["one.jar"]
    jar.write_text("two.jar")
    assert fetched() == ["one.jar"]
    pom.write_text("<project>2</project>")
    assert fetched() == ["two.jar"]  # the jars of the former list would be on the class path, too
