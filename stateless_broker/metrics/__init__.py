"""What a process tells Prometheus.

The rest of the broker knows only the hooks (`BundleMetrics`, `StoreMeter`, `CallMeter`), no metrics
library. Hooks on the way of every batch add to plain numbers; those of a flush, a call or a store
request use the library's instruments, bound to their labels once; everything that can be looked up
is looked up when somebody scrapes. Labels are bounded: operations, error codes, owned bundles, and
topics up to a cap.
"""
