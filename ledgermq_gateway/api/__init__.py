"""The interface as data: the table of routes and its OpenAPI document."""
