"""Read a root as it was at a cut, and copy that."""
