"""Moves frames between sockets and an application, and knows neither the log nor the protocol.

server.py          the acceptor and the processors
processor.py       an event loop with its share of the connections (poll.py: epoll on Linux)
connection.py      one client: request frames in, responses out (outbox.py)
transport.py       a connection's byte stream: plain TCP; tls_transport.py: TLS
listeners.py       the addresses; tls_context.py: their certificates
frame_memory.py    the memory of all requests; handshakes.py, unauthenticated.py: what strangers may use
"""
