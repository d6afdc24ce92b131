"""Ports of a broker: gRPC, calls within the process, the admin port."""
