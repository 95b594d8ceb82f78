"""`embedlog compact`: compact topics now, instead of when enough of them is dirty."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..errors import InvalidArgument
from ..units import size
from .arguments import LOCKS, Command, arg, defaults, directory
from .opening import writer
from .ui import UI

_DESCRIPTION = """\
Keep the last record of each key, now. Only topics whose cleanup_policy has compact in it are compacted, and
of those the sealed segments. The files that were replaced are removed file_delete_delay_ms later, or when the
directory is next opened for writing."""

_NOT_OVER_WIRE = (
    "brokers compact by themselves: `embedlog topics alter` sets min_cleanable_dirty_ratio, which says how "
    "soon"
)


def commands() -> Iterator[Command]:
    yield Command("compact", "keep the last record of each key", LOCKS, run, _DESCRIPTION).takes(
        directory(_NOT_OVER_WIRE),
        arg("TOPIC", "default: all that are compacted", dest="topics", nargs="*"),
        arg("--json", "a JSON object a topic"),
        defaults(inside="log.compact(topic)"),
    )


def run(args: argparse.Namespace, ui: UI) -> int:
    with writer(args, ui) as log:
        for topic in args.topics:
            args.topic = topic  # for what an error says
            policy = log.backend.topic_settings(topic).cleanup_policy
            if "compact" not in policy:
                raise InvalidArgument(
                    f"{topic} has cleanup_policy {policy or 'none'}: compacting would delete what is to be "
                    "kept\n"
                    f"embedlog topics alter {args.directory} {topic} --config cleanup_policy=compact   "
                    "allows it"
                )
        compacted = [name for name in log.topics(internal=True) if log.backend.topic_settings(name).compacts]
        names = args.topics or compacted
        with ui.progress(sizes=False) as bars:
            freed = {}
            for done, topic in enumerate(names, 1):
                freed[topic] = log.compact(topic)
                bars.update("compacting", done, len(names))
    for topic, count in freed.items():
        freed_text = f"{size(count)} freed" if count else "nothing to compact in its sealed segments"
        ui.result({"topic": topic, "freed_bytes": count}, f"{topic}: {freed_text}")
    if not names and not args.json:
        ui.line("no topic has cleanup_policy=compact")
    return 0
