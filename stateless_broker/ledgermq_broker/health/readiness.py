"""Report whether a process is alive and ready, and whether the cluster is well.

`Health` is one value, read by the gRPC health service and by /readyz:

    starting ──> ready ──> draining
       └── waiting for something, with the reason ──┘

Once ready, a process stays ready until it drains, also while the store is unreachable. It still
answers every call, with a typed error that says when to retry. A load balancer that dropped all
brokers at once would only turn that into a refused connection.

`Alarms` and `problems` describe the problems of a cluster whose processes are ready: `ledgermq
status` and the notes of /readyz show them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from ledgermq_broker.cluster.directory import Directory

CHANGES_MAX = 5
"""Changes of a bundle's owner within a minute, above which it is a problem.

A start of several brokers causes some: they claim concurrently, then one hands over to the next.
"""
ALARMS_MAX = 20
ALARM_CHARS_MAX = 500

STARTING = "the process is starting"
DRAINING = "the process is stopping"


class Health:
    """`why_not`: why it is not ready, "" when it is.

    `notes`: problems of a ready process, shown by /readyz.
    """

    def __init__(self, notes: Callable[[], list[str]] = list) -> None:
        self.why_not = STARTING
        self.notes = notes

    @property
    def is_ready(self) -> bool:
        return not self.why_not

    def waits(self, why: str) -> None:
        """Declare a condition: the process is not ready before it has passed."""
        if self.why_not != DRAINING:
            self.why_not = why

    def ready(self) -> None:
        self.waits("")

    def drains(self) -> None:
        """Declare the process draining, permanently."""
        self.why_not = DRAINING


class Alarms:
    """Problems with what this broker serves, as far as its parts detect them: sentences that name
    the bundle, the partition or the object, and what to do. Heartbeats carry them to the other
    brokers, so any broker reports them all.
    """

    def __init__(self) -> None:
        self._sources: list[Callable[[], Iterable[str]]] = []

    def add(self, source: Callable[[], Iterable[str]]) -> None:
        """Add a source; `source()` is called with each heartbeat. It reads what is already in
        memory, and costs no request.
        """
        self._sources.append(source)

    def now(self) -> tuple[str, ...]:
        found = [alarm[:ALARM_CHARS_MAX] for source in self._sources for alarm in source()]
        if len(found) > ALARMS_MAX:
            return (*found[:ALARMS_MAX], f"{len(found) - ALARMS_MAX} more alarms of this broker are not shown")
        return tuple(found)


def problems(directory: Directory, alarms: Collection[str], now: float) -> list[str]:
    """Return why the cluster is not well, as one of its brokers sees it. It is empty if every
    bundle has an owner that serves it and keeps it.

    `alarms`: of all brokers that are present.
    """
    found: list[str] = []
    for bundle, claims in directory.claims.items():
        if bundle in directory.troubles:
            found.append(f"bundle {bundle} is in trouble: {directory.troubles[bundle]}")
        elif bundle not in directory.owners:
            found.append(
                f"bundle {bundle} has no owner, so its partitions are not served: a broker claims it within seconds; "
                "if none does, the brokers' logs say why"
            )
        if (changes := claims.changes(now)) > CHANGES_MAX:
            found.append(
                f"bundle {bundle} changed owners {changes} times within a minute: look in the brokers' logs for `bundle"
                " lost`; a store that is slow or full, or machines that stand still, cause it"
            )
    return found + list(dict.fromkeys(alarms))
