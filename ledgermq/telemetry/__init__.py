"""Traces of messages: the context that records carry, and the spans of clients and brokers.

    trace_context   pure: W3C's headers `traceparent` and `tracestate`
    tracing         spans, by OpenTelemetry's API; the only module that imports it

Nothing here imports OpenTelemetry while tracing is off.
"""
