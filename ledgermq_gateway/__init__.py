"""The HTTP gateway: a stateless process that serves the cluster over HTTP and JSON (docs/gateway.md).

It imports the SDK only. It has no rights itself: each request goes to the brokers with the credential of its
caller, and brokers decide.

    http          a request as a frozen `Call`, an answer, errors, limits, and the aiohttp server: the only part that
                  knows aiohttp
    callers       one client for each credential
    resources     what a call does, one file for each group of resources
    api           the table of routes, and the OpenAPI document made from it
"""
