"""Generate the protobuf modules beside their .proto files, or (--check) say whether those that are
committed are up to date.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from infra.call_types import call_types

ROOT = Path(__file__).resolve().parent.parent
INCLUDES = Path(grpc_tools.__file__).parent / "_proto"
SOURCES = (ROOT / "ledger", ROOT / "offsets", ROOT / "stateless_broker", ROOT)
"""Folders that hold packages; the name of a .proto file in its descriptor counts from there."""
CALLS = "calls/__init__.pyi"


def generate(protos: list[str], out: Path) -> None:
    """Write `<name>_pb2.py` and `<name>_pb2.pyi` under `out`, as the protos lie under the clone; for a
    service also `calls/__init__.pyi`.

    No gRPC stubs: handlers are generic.
    """
    for proto in protos:
        source = next(source for source in SOURCES if Path(proto).is_relative_to(source))
        folder = out / source.relative_to(ROOT)
        folder.mkdir(exist_ok=True)
        status = protoc.main(
            ["protoc", f"-I{source}", f"-I{INCLUDES}", f"--python_out={folder}", f"--pyi_out={folder}", proto]
        )
        if status != 0:
            sys.exit(f"protoc failed with status {status} on {proto}")
        write_call_types(proto, source, folder)


def write_call_types(proto: str, source: Path, folder: Path) -> None:
    with tempfile.NamedTemporaryFile() as found:
        protoc.main(["protoc", f"-I{source}", f"-I{INCLUDES}", f"--descriptor_set_out={found.name}", proto])
        place = Path(proto).relative_to(source).parent
        text = call_types(found.read(), ".".join(place.parts))
    if text is not None:
        written = folder / place / CALLS
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text)


def descriptors(protos: list[str]) -> bytes:
    """Return the FileDescriptorSet of all of them: what they declare, without comments."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        includes = [f"-I{source}" for source in SOURCES]
        status = protoc.main(["protoc", *includes, f"-I{INCLUDES}", f"--descriptor_set_out={out}", *protos])
        if status != 0:
            sys.exit(f"protoc failed with status {status}")
        return out.read_bytes()


def all_protos() -> list[str]:
    """Return the paths of all .proto files."""
    packages = ("ledger", "ledgermq", "offsets", "stateless_broker")
    return [str(path) for folder in packages for path in sorted((ROOT / folder).rglob("*.proto"))]


def stale(protos: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        generate(protos, Path(folder))
        made = [path.relative_to(folder) for path in Path(folder).rglob("*.py*")]
        return [str(path) for path in made if not same(ROOT / path, Path(folder) / path)]


def same(committed: Path, generated: Path) -> bool:
    return committed.exists() and committed.read_bytes() == generated.read_bytes()


def main(arguments: list[str]) -> None:
    protos = [str(ROOT / argument) for argument in arguments if argument != "--check"]
    if "--check" not in arguments:
        generate(protos, ROOT)
    elif files := stale(protos):
        sys.exit(f"generated code is not up to date, run `make proto`: {', '.join(sorted(files))}")


if __name__ == "__main__":
    main(sys.argv[1:])
