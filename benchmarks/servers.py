"""`python -m benchmarks.servers KIND [DIRECTORY]`: a server process that runs until its input ends.

    broker      embedlog's, over DIRECTORY
    acls        the same with 10,000 ACLs
    uvloop      an asyncio protocol that echoes, on uvloop; asyncio: the same on asyncio's own loop
    sink        a plain loop: receive a frame into a buffer, write it to a file, answer four bytes
    source      a plain loop: for each four bytes received, send a mebibyte of a file by sendfile

It prints its port. The plain ones serve one connection at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading

FRAME = struct.Struct(">i")
USER, PASSWORD = "alice", "correct horse"
MIB = 1 << 20


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


async def echo() -> None:
    """Serve echoes until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def plain(serve: object) -> None:
    """Serve one connection after another, in a thread, until the input ends."""

    def accept() -> None:
        with contextlib.suppress(OSError):  # the client or this server has ended
            while True:
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection:
                    serve(connection)  # type: ignore[operator]

    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


def sink(connection: socket.socket) -> None:
    """Write frames to a file."""
    buffer = bytearray(2 * MIB)
    with open(os.path.join(sys.argv[2], "sink"), "wb", buffering=0) as file:
        while received := connection.recv_into(buffer):
            (size,) = FRAME.unpack_from(buffer)
            while received < size + FRAME.size:
                received += connection.recv_into(memoryview(buffer)[received:])
            file.write(memoryview(buffer)[:received])
            connection.sendall(b"done")


def source(connection: socket.socket) -> None:
    """Send a mebibyte of a file per request."""
    path = os.path.join(sys.argv[2], "source")
    with open(path, "w+b") as file:
        file.write(bytes(64 * MIB))
        file.flush()
        pos = 0
        while connection.recv(64):
            left = MIB
            while left:
                left -= os.sendfile(connection.fileno(), file.fileno(), pos + MIB - left, left)
            pos = (pos + MIB) % (64 * MIB)


def broker() -> None:
    """embedlog's broker."""
    from embedlog.cluster import Broker

    with Broker(sys.argv[2], max_message_bytes=64 * MIB) as serving:
        print(serving.port, flush=True)
        sys.stdin.read()


def broker_with_acls() -> None:
    """embedlog's broker, which decides by 10,000 ACLs; one prefix is of all who come."""
    from embedlog.cluster import Broker
    from embedlog.security.acls import (
        Binding,
        Operation,
        PatternType,
        Permission,
        Resource,
        ResourceType,
        Rule,
    )

    def rule(name: str, who: str, pattern: PatternType = PatternType.PREFIXED) -> Binding:
        allowed = Rule(who, "*", Operation.ALL, Permission.ALLOW)
        return Binding(Resource(ResourceType.TOPIC, name, pattern), allowed)

    with Broker(sys.argv[2], authorizer_class_name="AclAuthorizer") as serving:
        assert serving.context.access is not None
        many = [rule(f"team-{n}", f"User:{n}", PatternType(3 + n % 2)) for n in range(9_999)]
        serving.context.access.authorizer.add([rule("b", "User:ANONYMOUS"), *many])
        print(serving.port, flush=True)
        sys.stdin.read()


def broker_with_tls() -> None:
    """embedlog's broker, with TLS; DIR/tls has the certificates."""
    from embedlog.cluster import Broker
    from embedlog.security.certificates import Certificates

    where = sys.argv[2]
    keystore = Certificates(f"{where}/tls", "bench").of_server(["127.0.0.1"])
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl_keystore_location": keystore}
    with Broker(f"{where}/log", max_message_bytes=64 * MIB, **settings) as serving:
        print(serving.port, flush=True)
        sys.stdin.read()


def broker_with_sasl() -> None:
    """embedlog's broker, where USER authenticates."""
    from embedlog.cluster import Broker
    from embedlog.security.scram import DIGESTS, credential_of

    with Broker(sys.argv[2], listeners="SASL_PLAINTEXT://127.0.0.1:0") as serving:
        assert serving.context.users is not None
        serving.context.users.alter(
            USER, {mechanism: credential_of(mechanism, PASSWORD) for mechanism in DIGESTS}
        )
        print(serving.port, flush=True)
        sys.stdin.read()


def main() -> None:
    """Serve as the arguments say."""
    kind = sys.argv[1]
    if kind == "broker":
        broker()
    elif kind == "acls":
        broker_with_acls()
    elif kind == "tls":
        broker_with_tls()
    elif kind == "sasl":
        broker_with_sasl()
    elif kind == "uvloop":
        import uvloop

        uvloop.run(echo())
    elif kind == "asyncio":
        asyncio.run(echo())
    else:
        plain({"sink": sink, "source": source}[kind])


if __name__ == "__main__":
    main()
