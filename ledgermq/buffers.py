"""Bytes in memory: the type of what holds them, and the units to count them in."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview

KIB = 1024
MIB = 1024 * KIB
