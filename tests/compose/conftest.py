"""One compose project for all tests of this folder: built, up, and gone at the end, whatever
happens; logs stay when a test fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from infra import docker
from tests.compose.project import BUILD_S_MAX, SERVICES, Project, certificates, values_for_test


@pytest.fixture(scope="session")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Every service is healthy at first."""
    if (why := docker.missing()) is not None:
        pytest.fail(f"containers cannot be run here: {why}")
    say = speaker(request.config)
    begun = time.monotonic()
    folder = tmp_path_factory.mktemp("compose")
    found = Project(folder, values_for_test(folder))
    found.down()  # what a run that was killed has left
    with certificates():
        found.compose("build", timeout_s=BUILD_S_MAX)
    built = time.monotonic()
    is_up = False
    try:
        found.up()
        is_up = True
        say(f"images built in {built - begun:.0f} s, all healthy after {time.monotonic() - built:.0f} s more")
        for image in sorted({found.inspect(service)["Config"]["Image"] for service in SERVICES}):
            say(f"  {image}: {int(found.docker('image', 'inspect', '-f', '{{.Size}}', image)) / 1e6:.0f} MB")
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("LEDGERMQ_TOKEN", found.admin_token())  # of all clients that tests make
            yield found
    finally:
        if request.session.testsfailed or not is_up:
            say(f"logs of all containers: {found.save_logs()}")
        found.down()


def speaker(config: pytest.Config) -> Callable[[str], None]:
    """Prints a line that pytest does not keep for itself."""
    capture, terminal = (
        config.pluginmanager.getplugin("capturemanager"),
        config.pluginmanager.getplugin("terminalreporter"),
    )
    assert capture is not None
    assert terminal is not None

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.ensure_newline()
            terminal.write_line(line)

    return say
