"""Generate the protobuf modules beside their .proto files, or (--check) say whether those that are
committed are up to date.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
INCLUDES = Path(grpc_tools.__file__).parent / "_proto"


def generate(protos: list[str], out: Path) -> None:
    """Write `<name>_pb2.py` and `<name>_pb2.pyi` under `out`, in the folders of the protos.

    No gRPC stubs: handlers are generic.
    """
    status = protoc.main(["protoc", f"-I{ROOT}", f"-I{INCLUDES}", f"--python_out={out}", f"--pyi_out={out}", *protos])
    if status != 0:
        sys.exit(f"protoc failed with status {status}")


def stale(protos: list[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        generate(protos, Path(folder))
        made = [path.relative_to(folder) for path in Path(folder).rglob("*_pb2.py*")]
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
