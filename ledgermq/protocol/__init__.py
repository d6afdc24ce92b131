"""The protocol between clients and brokers: methods, frames, records, errors on the wire."""

import os

# Set before gRPC is imported: its own fork handlers do not support asyncio. They print a line, and
# child processes crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
