"""Counts each key's records exactly once, with Quix Streams: state, results and offsets are one transaction.

python quix_count.py BOOTSTRAP STATE_DIRECTORY
"""

from __future__ import annotations

import sys
from typing import Any

from quixstreams import Application, State


def count(line: str, state: State) -> dict[str, Any]:
    number = state.get("count", 0) + 1
    state.set("count", number)
    return {"line": line, "count": number}


def main(bootstrap: str, state_directory: str) -> None:
    app = Application(
        broker_address=bootstrap,
        consumer_group="quix",
        processing_guarantee="exactly-once",
        auto_offset_reset="earliest",
        commit_interval=0.3,
        state_dir=state_directory,
        consumer_extra_config={"session.timeout.ms": 6_000},
    )
    lines = app.topic("quix-lines", value_deserializer="str")
    counts = app.topic("quix-counts", value_serializer="json")
    app.dataframe(lines).apply(count, stateful=True).to_topic(counts)
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
