"""Traces of messages: the context that records carry, and the spans of clients and brokers; metrics of clients.

    trace_context   pure: W3C's headers `traceparent` and `tracestate`
    tracing         spans, by OpenTelemetry's API
    client_metrics  counts and times of clients, by the same; only these two import it

Nothing here imports OpenTelemetry while both are off.
"""
