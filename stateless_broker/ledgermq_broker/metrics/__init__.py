"""Expose the metrics of a process to Prometheus.

The rest of the broker knows only the hooks (`BundleMetrics`, `StoreMeter`, `CallMeter`), no metrics
library. Hooks on the path of every batch add to plain numbers. Hooks of a flush, a call or a store
request use the library's instruments, bound to their labels once. Everything else is read at scrape
time. Labels are bounded: operations, error codes, owned bundles, and topics up to a cap.
"""
