"""The clients of examples/protocol in Go, Java, Rust and TypeScript are built from the published .proto, with the
plug-ins of their languages, and pass every check of `ledgermq conformance`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from grpc_tools import protoc

from infra import debian, java
from infra.go_binary import GoBinary
from infra.protobuf import INCLUDES, ROOT
from ledgermq_tools.conformance.checks import check_client, chosen
from ledgermq_tools.conformance.program import Program

pytestmark = [pytest.mark.languages, pytest.mark.slow, pytest.mark.timeout(3600)]

EXAMPLES = ROOT / "examples" / "protocol"
PROTO = "ledgermq/protocol/ledgermq.proto"
BUILD_SECONDS_MAX = 1500
RUST_MIN = (1, 88)
"""As `rust-version` of its Cargo.toml says."""
RUST_TARGET = ROOT / ".cache" / "rust"
"""Kept, as crates take minutes to build."""
TASK_S_MAX = 180.0
GO = GoBinary(
    "protoc-gen-go", "LEDGERMQ_PROTOC_GEN_GO", "google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12", minutes=1
)
GO_GRPC = GoBinary(
    "protoc-gen-go-grpc",
    "LEDGERMQ_PROTOC_GEN_GO_GRPC",
    "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2",
    minutes=1,
)


def built(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


def needs(*tools: str) -> None:
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        pytest.skip(f"there is no {' and no '.join(missing)} on PATH")


def copied(name: str, tmp_path: Path) -> Path:
    """Copy an example without what a developer has built in it."""
    unwanted = shutil.ignore_patterns("node_modules", "built", "target", "ledgermq", "google")
    return Path(shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=unwanted))


def generate(*options: str) -> None:
    assert protoc.main(["protoc", f"-I{ROOT}", f"-I{INCLUDES}", *options, PROTO]) == 0


def go_client(tmp_path: Path) -> list[str]:
    needs("go")
    folder = copied("go", tmp_path)
    plugins = [f"--plugin=protoc-gen-{name}={binary.install()}" for name, binary in (("go", GO), ("go-grpc", GO_GRPC))]
    generate(*plugins, f"--go_out={folder}", f"--go-grpc_out={folder}")
    built(["go", "build", "-o", "client", "."], folder)
    return [str(folder / "client")]


def typescript_client(tmp_path: Path) -> list[str]:
    needs("node", "npm")
    folder = copied("typescript", tmp_path)
    built(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
    plugin = folder / "node_modules" / ".bin" / "protoc-gen-ts_proto"
    options = "outputServices=grpc-js,env=node,forceLong=bigint,esModuleInterop=true"
    generate(f"--plugin=protoc-gen-ts_proto={plugin}", f"--ts_proto_opt={options}", f"--ts_proto_out={folder}")
    built(["npx", "tsc"], folder)
    return ["node", str(folder / "built" / "main.js")]


def java_client(tmp_path: Path) -> list[str]:
    home = java.installed()
    if home is None:
        pytest.skip(f"there is no Java {java.VERSION_MIN} or newer: `python infra/java.py` installs it")
    java.compiler()
    if shutil.which("mvn") is None:
        debian.install("maven")
    needs("mvn")
    folder = copied("java", tmp_path)
    protos = tmp_path / "protos" / PROTO  # a folder with nothing else, which Maven would search
    protos.parent.mkdir(parents=True)
    shutil.copy(ROOT / PROTO, protos)
    built(["mvn", "-q", "-B", f"-Dproto.folder={tmp_path / 'protos'}", "package"], folder)
    path = os.pathsep.join([str(folder / "target" / "classes"), f"{folder / 'target' / 'jars'}/*"])
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")  # these processes live for seconds
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    return [str(home / "bin" / "java"), *quick, opened, "-cp", path, "example.Main"]


def rust_client(_tmp_path: Path) -> list[str]:
    needs("cargo", "rustc", "cc")
    said = subprocess.run(["rustc", "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.match(r"rustc (\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < RUST_MIN:
        pytest.skip(f"rustc is {said.strip() or 'of no known version'}, older than {RUST_MIN[0]}.{RUST_MIN[1]}")
    built(["cargo", "build", "--locked", "--target-dir", str(RUST_TARGET)], EXAMPLES / "rust")
    return [str(RUST_TARGET / "debug" / "client")]


@pytest.mark.parametrize("client", [go_client, typescript_client, java_client, rust_client])
async def test_a_client_passes_every_check_of_its_levels(client: object, tmp_path: Path) -> None:
    assert callable(client)
    checks = chosen((1, 2, 3), ())
    results = await check_client(Program(client(tmp_path), TASK_S_MAX), checks, print)
    assert [result for result in results if not result.passed] == []
    assert len(results) == len(checks)
