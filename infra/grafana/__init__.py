"""Define the Grafana dashboard as code."""
