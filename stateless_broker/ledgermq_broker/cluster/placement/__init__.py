"""Which broker should own which bundle. Pure."""
