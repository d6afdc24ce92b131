"""The protocol between clients and brokers: methods, frames, records, errors on the wire."""

import os

# Set before gRPC is imported: its own fork handlers do not support asyncio. They print a line, and
# child processes crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Its core prints a line about each handshake that fails, in another form than logs have; typed errors say more.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
