"""Provide a real NATS server for benchmarks."""

from __future__ import annotations

from infra.go_binary import GoBinary

BINARY = GoBinary("nats-server", "NATS_SERVER", "github.com/nats-io/nats-server/v2@v2.15.2", minutes=1)

if __name__ == "__main__":
    print(BINARY.install())
