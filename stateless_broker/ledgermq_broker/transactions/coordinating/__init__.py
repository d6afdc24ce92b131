"""The coordinator of one partition of `__transactions`, for one term of its bundle."""
