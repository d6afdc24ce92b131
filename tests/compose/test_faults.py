"""What may happen to containers, under load: nothing acknowledged is lost or stored twice, no
client sees an error, all come back.
"""

from __future__ import annotations

import asyncio
import time

import pytest

import ledgermq
from tests.compose.project import BROKERS, Project
from tests.compose.traffic import traffic_on
from tests.waiting import until
from tests.worlds.consumed import read_values

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]  # the first test builds the images

MOVED_S_MAX = 120.0


async def owners(target: str) -> set[str]:
    async with ledgermq.connect(target) as client:
        return {bundle.owner for bundle in (await client.describe_cluster()).bundles}


async def until_not_owner(project: Project, number: int) -> None:
    """Until the other brokers say that they own everything."""
    lost = project.address(f"BROKER_{number}_PORT")
    others = ",".join(address for address in project.target.split(",") if address != lost)

    async def moved() -> bool:
        return not await owners(others) & {lost, ""}

    await until(moved, MOVED_S_MAX, every_s=0.5, what=f"{lost} owns no bundle, and each bundle has an owner")


async def test_a_killed_broker_is_replaced_by_the_others(project: Project) -> None:
    async with traffic_on(project.target, "killed-broker") as traffic:
        await asyncio.to_thread(project.docker, "kill", project.container("broker-1"))
        await traffic.more()
        await until_not_owner(project, 1)
        assert project.state("broker-1") == "exited", "Docker leaves dead what its operator has killed"
        await traffic.more()
        await asyncio.to_thread(project.docker, "start", project.container("broker-1"))
        await asyncio.to_thread(project.wait_healthy, "broker-1")
        await traffic.more()


@pytest.mark.parametrize("service", ["broker-2", "minio", "compactor"])
async def test_a_crashed_process_is_started_again(project: Project, service: str) -> None:
    before = project.inspect(service)["RestartCount"]
    async with traffic_on(project.target, f"crashed-{service}") as traffic:
        await asyncio.to_thread(project.kill_process, service)
        await asyncio.to_thread(project.wait_restarted, service, before)
        await traffic.more()


async def test_a_restart_of_the_object_store_is_waited_out(project: Project) -> None:
    async with traffic_on(project.target, "restarted-store") as traffic:
        starts = {broker: project.inspect(broker)["State"]["StartedAt"] for broker in BROKERS}
        await asyncio.to_thread(project.docker, "restart", project.container("minio"))
        await traffic.more()
        await asyncio.to_thread(project.wait_healthy, "minio", *BROKERS)
        assert {broker: project.inspect(broker)["State"]["StartedAt"] for broker in BROKERS} == starts, (
            "no broker had to be restarted"
        )


async def test_a_broker_without_network_is_replaced_and_comes_back(project: Project) -> None:
    network, container = f"{project.name}_default", project.container("broker-3")
    async with traffic_on(project.target, "cut-off-broker") as traffic:
        await asyncio.to_thread(project.docker, "network", "disconnect", network, container)
        await until_not_owner(project, 3)
        await traffic.more()
        await asyncio.to_thread(project.docker, "network", "connect", "--alias", "broker-3", network, container)
        await asyncio.to_thread(project.wait_healthy, "broker-3")
        await traffic.more()
    assert project.inspect("broker-3")["RestartCount"] == 0, "it was fenced, not restarted"


async def test_new_containers_one_by_one_cost_no_client_an_error(project: Project) -> None:
    """What an upgrade does."""
    async with traffic_on(project.target, "upgraded") as traffic:
        for service in (*BROKERS, "compactor"):
            before = project.container(service)
            await asyncio.to_thread(project.compose, "up", "-d", "--no-build", "--no-deps", "--force-recreate", service)
            assert project.container(service) != before
            await asyncio.to_thread(project.wait_healthy, service)
            await traffic.more(100)


async def test_everything_is_still_there_after_down_and_up(project: Project) -> None:
    async with traffic_on(project.target, "kept") as traffic:
        await traffic.more()
    begun = time.monotonic()
    await asyncio.to_thread(project.compose, "stop", *BROKERS)
    for broker in BROKERS:
        assert project.inspect(broker)["State"]["ExitCode"] == 0, "it has handed over within its time"
    assert time.monotonic() - begun < 60
    await asyncio.to_thread(project.compose, "down")
    await asyncio.to_thread(project.up)
    async with ledgermq.connect(project.target) as client:
        assert await read_values(client, "kept") == traffic.sent
