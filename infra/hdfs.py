"""Run a real HDFS for tests: a NameNode and three DataNodes (`running`), of jars (68 MB) that
`infra.maven` fetches once.

Java 17 or newer is `infra.java`'s business.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra import java, maven
from infra.ports import free_port

START_SECONDS_MAX = 120
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
DATANODES = 3
SERVERS = (NAMENODE, *(f"{DATANODE}-{number}" for number in range(DATANODES)))
"""Names of all processes; the part behind the dash tells DataNodes apart."""


@dataclass
class Hdfs:
    """A running file system. `url` is that of its root. `processes`: by their names in `SERVERS`."""

    folder: Path
    port: int
    http_port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def start(self, *names: str) -> None:
        for name in names:
            main, _, number = name.partition("-")
            options = ["-D", f"dfs.datanode.data.dir={self.folder / 'data' / number}"] if number else []
            with self._log(name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    self._command(main, *options), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
                )

    def kill(self, *names: str) -> None:
        for name in names:
            process = self.processes.pop(name)
            process.kill()
            process.wait(timeout=30)

    def state(self) -> dict[str, object]:
        """Return what the NameNode reports: NumLiveDataNodes, FSState ("Operational" or
        "safeMode"), …; empty while it does not answer.
        """
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{query}", timeout=2) as answer:
                [found] = json.load(answer)["beans"]
        except (OSError, ValueError):
            return {}
        return dict(found)

    def wait_ready(self) -> None:
        """Wait until all DataNodes are there and it accepts writes."""
        until = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < until:
            state = self.state()
            if state.get("NumLiveDataNodes") == DATANODES and state.get("FSState") == "Operational":
                return
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended:\n{self._log(name).read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)
        raise RuntimeError("HDFS did not start in time")

    def format(self) -> None:
        subprocess.run(
            self._command(NAMENODE, "-format", "-nonInteractive"),
            cwd=self.folder,
            capture_output=True,
            timeout=120,
            check=True,
        )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.rpartition('.')[2]}.log"

    def _command(self, main: str, *arguments: str) -> list[str]:
        found = java.installed()
        assert found is not None, "Java is needed: python infra/java.py installs it"
        classes = os.pathsep.join(
            [str(self.folder / "conf"), str(self.folder / "classes"), f"{maven.jars('hadoop')}/*"]
        )
        return [str(found / "bin" / "java"), "-Xmx512m", "-cp", classes, main, *arguments]


@contextmanager
def running() -> Iterator[Hdfs]:
    """Run one NameNode and three DataNodes on free ports, in a temporary folder that is deleted
    afterwards. Files have a replica on each DataNode.
    """
    with tempfile.TemporaryDirectory(prefix="ledgermq-hdfs-") as name:
        hdfs = Hdfs(Path(name), free_port(), free_port())
        _configure(hdfs)
        hdfs.format()
        try:
            hdfs.start(*SERVERS)
            hdfs.wait_ready()
            yield hdfs
        finally:
            hdfs.kill(*hdfs.processes)


def _configure(hdfs: Hdfs) -> None:
    for part in ("conf", "classes/webapps/hdfs", "classes/webapps/datanode"):
        (hdfs.folder / part).mkdir(parents=True)
    core = {"fs.defaultFS": hdfs.url, "hadoop.tmp.dir": str(hdfs.folder / "data")}
    anywhere = "127.0.0.1:0"
    site = {
        "dfs.replication": str(DATANODES),
        "dfs.namenode.file.close.num-committed-allowed": "1",
        "dfs.namenode.http-address": f"127.0.0.1:{hdfs.http_port}",
        "dfs.namenode.rpc-bind-host": "127.0.0.1",
        "dfs.datanode.address": anywhere,
        "dfs.datanode.http.address": anywhere,
        "dfs.datanode.ipc.address": anywhere,
        "dfs.namenode.safemode.extension": "0",
    }
    for file, properties in (("core-site.xml", core), ("hdfs-site.xml", site)):
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
        (hdfs.folder / "conf" / file).write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")
