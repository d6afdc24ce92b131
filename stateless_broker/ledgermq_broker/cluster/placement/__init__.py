"""Which broker should own which bundle, and when a broker may try to take one. Pure."""
