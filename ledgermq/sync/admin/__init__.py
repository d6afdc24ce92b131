"""The doors for administration."""
