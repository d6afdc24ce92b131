"""HTTP without resources: calls and answers, problems, limits, the server."""
