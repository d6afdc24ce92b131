"""LedgerMQ under measurement: broker processes with their defaults on a root, and client processes
(`bench.load`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import topics
from bench.load import WARM
from bench.store_bill import Bill
from ledgermq import Tls
from tests.e2e.admin_port import AdminPort
from tests.e2e.processes import BrokerProcesses

RUN_S_MAX = 600
PROGRAMS = {
    **dict.fromkeys(("commit", "bulk", "beside"), "bench.transactional"),
    **dict.fromkeys(("send", "receive", "precise", "live"), "bench.timed_client"),
    **dict.fromkeys(("keyed", "handled"), "bench.keyed_client"),
    "flood": "bench.flood",
    "openmessaging": "bench.openmessaging.client",
}
"""What other programs than `bench.load` do."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Cluster:
    """`root`: a root URL. By default one broker, with every default: fsync, checks and idempotence
    on. `tls_ca`: clients connect by TLS and trust this file. `token`: by which clients prove themselves.
    """

    def __init__(
        self,
        folder: Path,
        root: str,
        brokers: int = 1,
        *options: str,
        tls_ca: Path | None = None,
        token: str = "",
    ) -> None:
        self.root = root
        self._tls = None if tls_ca is None else Tls(ca=tls_ca)
        self._token = token
        self.brokers = BrokerProcesses(folder, root, options)
        self._topics = 0
        try:
            self.brokers.start_all(brokers)
        except BaseException:  # no caller has this cluster yet, so none could close it
            self.close()
            raise

    def new_topic(self, partitions: int) -> str:
        self._topics += 1
        return topics.create(self.brokers.addresses, f"bench-{self._topics}", partitions, self._tls, self._token)

    def bill(self) -> Bill:
        """Return the bill of the first broker, which was started with an admin port."""
        return Bill.of(AdminPort(self.brokers.running[0]))

    def start_client(self, what: str, topic: str, *, token: str = "", **options: object) -> subprocess.Popen[str]:
        """Start a client; `token`: by which this one proves itself."""
        given = [
            "--" + name.replace("_", "-") + ("" if value is True else f"={value}")
            for name, value in options.items()
            if value is not False
        ]
        program = PROGRAMS.get(what, "bench.load")
        command = [sys.executable, "-m", program, what, self.brokers.addresses, topic, *given]
        more = {} if self._tls is None else {"LEDGERMQ_TLS_CA_FILE": str(self._tls.ca)}
        more |= {"LEDGERMQ_TOKEN": token or self._token} if token or self._token else {}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **more})

    def start_warm_client(self, what: str, topic: str, **options: object) -> subprocess.Popen[str]:
        """Start a producer that has sent a record to each partition, or a consumer that knows where
        it starts; it begins only now.
        """
        client = self.start_client(what, topic, warm_up=True, **options)
        wait_until_warm(client)
        return client

    def client(self, what: str, topic: str, **options: object) -> dict[str, Any]:
        return answer(self.start_client(what, topic, **options))

    def cpu_s(self) -> float:
        """Return the CPU seconds of all brokers since they began."""
        return sum(cpu_s_of(broker.pid) for broker in self.brokers.running)

    def rss_bytes(self) -> int:
        return max(rss_bytes_of(broker.pid) for broker in self.brokers.running)

    def close(self) -> None:
        self.brokers.close()


def wait_until_warm(client: subprocess.Popen[str]) -> None:
    assert client.stdout is not None
    if client.stdout.readline().strip() != WARM:
        raise RuntimeError("the client ended before it began")


def stop_client(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Let a client that runs until it is stopped end, and return its answer. Raises as `answer`."""
    client.terminate()
    return answer(client)


def answer(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the client's answer. Raises RuntimeError if the client failed; its output is on
    stderr.
    """
    text, _ = client.communicate(timeout=RUN_S_MAX)
    if client.returncode != 0:
        raise RuntimeError(f"the client ended with {client.returncode}")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds of a process since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def rss_bytes_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)
