"""Say what the default seeds of level *cuts* have to reach; `demands_on_clusters` says what that means."""

from __future__ import annotations

MUST_HAPPEN: dict[str, tuple[str, ...]] = {
    "cuts": (
        "a cut was taken",
        "a cut was not taken",
        "a cut was read",
        "a cut was dropped",
        "a cut was read from the store alone",
        "a cut was restored",
        "a restore died",
        "an automatic cut began",
        "a cut has something staged",
        "a file was handed over to cuts",
        "a partition was to move",
        "disturbance: pause",
        "disturbance: kill",
        "disturbance: graceful stop",
        "disturbance: network cut",
    ),
}

RARE: dict[str, set[str]] = {
    "cuts": {
        "an automatic cut began",
        "a cut has something staged",
        "a file was handed over to cuts",
        "a partition was to move",
        "disturbance: pause",
        "disturbance: kill",
        "disturbance: graceful stop",
        "disturbance: network cut",
    },
}
