"""Settings of the SDK."""
