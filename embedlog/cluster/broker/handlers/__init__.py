"""The broker's request handlers: one module per family of APIs.

Each has a class over a `BrokerContext`. Its methods take a `RequestContext` and a request, and return the
response, or a future of it if they have to wait. Handlers know the engine and the protocol but not each
other; `dispatch.py` knows them all.
"""
