"""Endpoint picker for Envoy and gateways of the Gateway API, by the protocol ext_proc.

In: requests that a gateway holds, and metrics of engines. Out: an endpoint for each request. Start
with `picker.py`, then `ext_proc.py`. Imports no engine and no Ray.
"""
