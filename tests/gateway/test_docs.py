"""The curl commands of docs/gateway.md run as they are written."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.docs.pages import CLONE, blocks_of
from tests.gateway.test_operating import bury, half_messages
from tests.gateway.world import world

PAGE = CLONE / "docs" / "gateway.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
async def test_commands_of_the_page_run_as_written(tmp_path: Path) -> None:
    blocks = [block.text for block in blocks_of(PAGE) if block.language == "bash" and "curl" in block.text]
    assert len(blocks) >= 4
    (tmp_path / "shop.token").write_text("anonymous")
    async with world() as at:
        await bury(at, "mailer", 2)
        await half_messages(at, "checkers", "order-17")
        for block in blocks:
            script = block.replace("localhost:8080", f"127.0.0.1:{at.port}").replace(
                "curl -sS", "curl -sS --fail-with-body"
            )
            process = await asyncio.create_subprocess_exec(
                "bash",
                "-e",
                "-c",
                script,
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0, (script, output.decode())
            assert b"problem" not in output, output.decode()
