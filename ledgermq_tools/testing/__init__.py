"""Run tests of programs that use LedgerMQ: a cluster in the test's own process, in virtual time."""
