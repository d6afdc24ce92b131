"""Reports of the internal topics of a root."""
