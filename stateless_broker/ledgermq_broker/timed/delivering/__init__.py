"""Bring timed messages on: deliver those whose time has come, move the others to where they should wait."""
