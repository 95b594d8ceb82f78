"""Runs ZooKeeper: one server or an ensemble, as processes of this machine.

    with ZooKeepers("./zk") as zookeepers:             # a free port, 127.0.0.1
        KazooClient(zookeepers.connect_string)

The server is in PySpark's jars (five of them suffice), the Java in `embedlog.runtime.java`. Each server has
its own subdirectory `N`: `zoo.cfg`, written at each start, `myid`, `data`, and `server.log`, the output of
the process. A server is ready when it reports that it serves: in an ensemble, when a majority has elected a
leader.

A directory belongs to one ensemble: it is locked (`lock`, by flock) while one of its servers lives. Its
number of servers is fixed, because new servers without data could outvote the one that has it.

No orphans: for each server a small shell waits on a pipe. However this process ends, the pipe
closes and the shell kills the server.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ...errors import InvalidArgument, ZooKeeperError, ZooKeeperUnavailable, counted
from ...files.filesystem import FileSystem
from ...files.names import FORMAT_FILE
from ...runtime.closing import Closing
from ...runtime.java import java_home
from ...validation import check_int, check_text

# What a server with TLS needs besides.
_NETTY: Final = (
    *(
        "netty-buffer-*",
        "netty-codec-base-*",
        "netty-common-*",
        "netty-handler-[0-9]*",
        "netty-resolver-[0-9]*",
    ),
    *("netty-transport-[0-9]*", "netty-transport-classes-epoll-*", "netty-transport-native-unix-common-*"),
    "netty-codec-4*",
)
_JARS: Final = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "snappy-java-*", "metrics-core-*")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_READY_S: Final = 60.0
_STOP_S: Final = 5.0
_POLL_S: Final = 0.02  # between checks whether it is ready
_LAST_PORT: Final = 65_535
_LOCK: Final = "lock"
_LOCK_S: Final = 2.0  # the servers of a killed owner end a moment after it

MAX_SERVERS: Final = 9
"""In one ensemble: more make writes slower and nothing safer."""

# Session timeouts may be 1 to 60 seconds. An ensemble's limits are 20 ticks of 0.5 s, so that a slow machine
# does not split it.
_TICK_MS: Final = 500
_CONFIG: Final = f"""\
tickTime={_TICK_MS}
initLimit=20
syncLimit=20
minSessionTimeout={2 * _TICK_MS}
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr,mntr,cons
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
preAllocSize=1024
"""

# Kills the given process when its standard input, to which nothing is written, ends.
_WATCHER: Final = 'trap "" INT TERM HUP; read -r _; kill -9 "$1" 2>/dev/null'


class Extras(NamedTuple):
    """Of a server that wants TLS or passwords: lines of zoo.cfg, Java's options. netty: TLS needs it."""

    config: Mapping[str, object] = MappingProxyType({})
    java: Sequence[str] = ()
    netty: bool = False


class Endpoint(NamedTuple):
    """A server's host, and its ports for clients and for its peers (data, election)."""

    host: str
    port: int
    peer_port: int
    election_port: int


class ZooKeeperServer:
    """One server: a process and its data directory.

    Args:
        directory: of this server alone; created if it does not exist.
        number: its number in the ensemble, from 1.
        endpoints: of all servers of the ensemble, by number from 1.
        heap_mb: Java's maximum heap.
        lock: a descriptor that its process keeps open, too.
    """

    def __init__(
        self,
        directory: Path,
        number: int,
        endpoints: Sequence[Endpoint],
        heap_mb: int,
        lock: int,
        extras: Extras,
    ) -> None:
        self._extras = extras
        self.directory = directory
        self.number = number
        self.endpoint = endpoints[number - 1]
        self._endpoints = endpoints
        self._heap_mb = heap_mb
        self._lock = lock
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """ "host:port" for clients."""
        return f"{self.endpoint.host}:{self.endpoint.port}"

    @property
    def pid(self) -> int:
        """The process id. Raises ZooKeeperError if the server is not running."""
        if self._process is None:
            raise ZooKeeperError(f"no ZooKeeper server runs for {self.address}")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its process is alive; it may still be starting."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process unless it runs; it is ready later. Raises JavaNotFound, ZooKeeperError."""
        if self.is_running:
            return
        self.stop()
        self._write_files()
        command = [
            str(java_home() / "bin" / "java"),
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseSerialGC",  # starts sooner and needs no threads
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            # Else the pauses between its questions for the leader double up to a minute.
            "-Dzookeeper.fastleader.maxNotificationInterval=1000",
            *self._extras.java,
            "-cp",
            os.pathsep.join(map(str, _jars((*_JARS, *_NETTY) if self._extras.netty else _JARS))),
            _MAIN,
            str(self.directory / "zoo.cfg"),
        ]
        with open(self.directory / "server.log", "wb") as log:
            # Its own session: Ctrl-C in a terminal is for this process, which then stops the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(self._lock,),
            )
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_until_ready(self, timeout_s: float = _READY_S) -> None:
        """Wait until it serves clients. Raises ZooKeeperUnavailable if its process ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not self._is_serving():
            if not self.is_running:
                raise ZooKeeperUnavailable(
                    f"the ZooKeeper server of {self.address} ended: {self._last_output()}"
                )
            if time.monotonic() > deadline:
                raise ZooKeeperUnavailable(
                    f"the ZooKeeper server of {self.address} does not serve after {timeout_s:g} s: "
                    f"{self._last_output()}"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the process; acknowledged writes are on disk. It may be started again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would. It may be started again."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        watcher, self._watcher = self._watcher, None
        process, self._process = self._process, None
        if watcher is not None:  # first: later the process id may belong to another process
            watcher.kill()
            watcher.communicate()
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a stopped process would not handle the other signal
        process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write_files(self) -> None:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        text = _CONFIG + f"dataDir={data.absolute()}\nclientPortAddress={self.endpoint.host}\n"
        text += f"clientPort={self.endpoint.port}\n"
        text += "".join(f"{name}={value}\n" for name, value in self._extras.config.items())
        if len(self._endpoints) > 1:
            for number, peer in enumerate(self._endpoints, 1):
                text += f"server.{number}={peer.host}:{peer.peer_port}:{peer.election_port}\n"
        (self.directory / "zoo.cfg").write_text(text)
        (data / "myid").write_text(f"{self.number}\n")

    def _is_serving(self) -> bool:
        try:
            with socket.create_connection((self.endpoint.host, self.endpoint.port), 1) as connection:
                connection.sendall(b"srvr")
                response = b""
                while chunk := connection.recv(4096):
                    response += chunk
        except OSError:
            return False
        return response.startswith(b"Zookeeper version")

    def _last_output(self) -> str:
        with contextlib.suppress(OSError):
            lines = (self.directory / "server.log").read_text(errors="replace").splitlines()
            own_lines = [line for line in lines if line and not line.startswith("SLF4J")]
            if own_lines:
                return own_lines[-1][:500]
        ports = ", ".join(map(str, self.endpoint[1:]))
        return f"no output; check that the ports {ports} are free and {self.directory} is intact"


class ZooKeepers(Closing):
    """A server or an ensemble of servers. The constructor starts them; a context manager.

    Args:
        directory: of their data; None for a temporary one, deleted at the end.
        servers: how many; an ensemble of 3 survives the loss of one.
        port: of the first server; the others take the ports after it. 0: free ports for all.
        hosts: the addresses to listen on; one for all servers, or one for each.
        heap_mb: of each server.
        extras: of each server.

    Raises JavaNotFound, InvalidArgument (a log's directory, or the data of another number of servers),
    ZooKeeperError (the directory is in use), OSError.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        servers: int = 1,
        port: int = 0,
        hosts: Sequence[str] = ("127.0.0.1",),
        heap_mb: int = 96,
        extras: Extras | None = None,
    ) -> None:
        check_int("servers", servers, low=1, high=MAX_SERVERS)
        check_int("port", port, low=0, high=_LAST_PORT - servers + 1)
        check_int("heap_mb", heap_mb, low=16)
        for host in hosts:
            check_text("hosts", host)
        if len(hosts) not in (1, servers):
            raise InvalidArgument(f"{len(hosts)} hosts for {servers} servers: one for all, or one for each")
        each_host = list(hosts) * servers if len(hosts) == 1 else list(hosts)
        with contextlib.ExitStack() as undo:
            if directory is None:
                directory = tempfile.mkdtemp(prefix="embedlog-zookeeper-")
                undo.callback(shutil.rmtree, directory, ignore_errors=True)
            self.directory = Path(directory)
            _check_directory(self.directory, servers)
            lock = undo.enter_context(_locked(self.directory))
            endpoints = _choose_endpoints(each_host, port)
            self.servers = [
                ZooKeeperServer(
                    self.directory / str(number), number, endpoints, heap_mb, lock, extras or Extras()
                )
                for number in range(1, servers + 1)
            ]
            for server in self.servers:
                undo.callback(server.stop)
                server.start()
            for server in self.servers:
                server.wait_until_ready()
            self._undo = undo.pop_all()

    @property
    def connect_string(self) -> str:
        """ "host:port,host:port" for clients."""
        return ",".join(server.address for server in self.servers)

    def close(self) -> None:
        """Stop all servers. Idempotent."""
        self._undo.close()


def _check_directory(directory: Path, servers: int) -> None:
    """Raises InvalidArgument for a log, and for the data of another number of servers."""
    if directory.exists() and not directory.is_dir():
        raise InvalidArgument(f"{directory} is a file: a ZooKeeper needs a directory")
    if (directory / FORMAT_FILE).exists():
        raise InvalidArgument(f"{directory} is a log: a ZooKeeper needs another directory")
    if not any(directory.glob("*/data/version-2")):
        return
    with contextlib.suppress(OSError):
        count = max((directory / "1" / "zoo.cfg").read_text().count("\nserver."), 1)
        if count != servers:
            raise InvalidArgument(
                f"{directory} has the data of {counted(count, 'server')}, not of {servers}: start that many, "
                "or name a new directory (servers without data could outvote those that have it)"
            )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Lock the directory; yields the lock's descriptor. Raises ZooKeeperError, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / _LOCK
    path.touch()
    deadline = time.monotonic() + _LOCK_S
    while (lock := FileSystem().try_lock(str(path))) is None:
        if time.monotonic() > deadline:
            raise ZooKeeperError(
                f"{directory} is in use by the ZooKeeper of process {path.read_text() or 'unknown'}: stop "
                "that one first, or give another directory"
            )
        time.sleep(_POLL_S)
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield lock
    finally:
        os.close(lock)


def _choose_endpoints(hosts: Sequence[str], port: int) -> list[Endpoint]:
    """Ports for all servers. All are held until the last is chosen, so that they differ.

    Raises ZooKeeperError for a port in use.
    """
    with contextlib.ExitStack() as sockets:

        def bound(host: str, bind_port: int) -> int:
            try:
                sock = sockets.enter_context(
                    socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
                )
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, bind_port))
            except OSError as error:
                raise ZooKeeperError(f"{host}:{bind_port} cannot be listened on: {error.strerror}") from None
            number: int = sock.getsockname()[1]
            return number

        client_ports = [bound(host, port + number if port else 0) for number, host in enumerate(hosts)]
        return [
            Endpoint(host, client_port, bound(host, 0), bound(host, 0))
            for host, client_port in zip(hosts, client_ports, strict=True)
        ]


def _jars(forms: Sequence[str]) -> list[Path]:
    """Raises ZooKeeperError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperError(
            "the ZooKeeper server is in PySpark's jars, and PySpark is not installed: "
            "pip install 'embedlog[cluster-dev]'"
        )
    directory = Path(spec.origin).parent / "jars"
    jars = []
    for form in forms:
        matching = sorted(directory.glob(f"{form}.jar"))
        if not matching:
            raise ZooKeeperError(f"there is no {form}.jar in {directory}: this PySpark is incomplete")
        jars.append(matching[-1])
    return jars
