"""Types of objects that hold bytes in memory, and units of their sizes."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

KIB = 1024
MIB = 1024 * KIB
