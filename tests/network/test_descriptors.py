"""More clients than descriptors: connected ones are served, and new ones again once there is room."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from contextlib import ExitStack

from wire import Wire, batch_of

from embedlog.wire.apis.api_versions import ApiVersionsRequest
from embedlog.wire.apis.metadata import MetadataRequest, MetadataRequestTopic

LIMIT = 256
SERVE = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from embedlog.cluster import Broker
with Broker() as broker:
    broker.log.create_topic("t", segment_bytes=4096)
    print(broker.port, flush=True)
    sys.stdin.read()
"""


class Served:
    def __init__(self, port: int) -> None:
        self.port = port


def test_more_clients_than_descriptors() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * LIMIT
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert process.stdout is not None
        served = Served(int(process.stdout.readline()))
        client = stack.enter_context(Wire(served))
        assert client.produce("t", batch_of(b"first")).error_code == 0
        with ExitStack() as others:
            wires = [others.enter_context(Wire(served)) for _ in range(LIMIT + 20)]
            assert wires[-1].is_closed_by_peer()
            for _ in range(20):  # each begins a new segment
                assert client.produce("t", batch_of(bytes(3_000))).error_code == 0
            asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
            assert client.ask(asked, 4).topics[0].error_code == 0
            assert len(client.fetch("t", 0).records) > 0
        while True:
            try:
                with Wire(served) as again:
                    assert again.ask(ApiVersionsRequest(), 0).error_code == 0
                    break
            except ConnectionError:
                time.sleep(0.01)  # until the broker has seen that the others are gone
        process.communicate()
    assert process.returncode == 0
