"""What clients and brokers say to each other: methods, frames, records, errors on the wire."""

import os

# Before gRPC is imported. Its own handlers at fork do not serve asyncio: they print a line, and
# children crash by them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
