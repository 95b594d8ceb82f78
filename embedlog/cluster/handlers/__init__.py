"""What a broker does with each request: one module a family of APIs.

Each has a class over a `Node`, whose methods take a `Call` and a request and give the response, or a future
of it where it has to wait. They know the engine and the protocol, and not each other; `broker.py` knows them.
"""
