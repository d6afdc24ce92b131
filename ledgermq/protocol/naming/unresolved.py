"""Names of what the cluster keeps about half messages that no producer knew about: the topic, and the
headers of its records. A copy has the first four; a decision has the first and the last.
"""

from __future__ import annotations

SUFFIX = ".unresolved"
"""Copies of a check group's messages lie in the topic `<check group>.unresolved`."""
ID = "half.transactional-id"
TOPIC, PARTITION = "half.topic", "half.partition"
CHECKS = "half.checks"
DECISION = "half.decision"
