"""Where `embedlog users`, `acls` and `quotas` find what they list and change: documents, or brokers."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from ..backends.remote import RemoteBackend
from ..errors import EmbedlogError, InvalidArgument
from ..files.names import CLUSTER_FILE
from ..open import open as open_log
from .arguments import is_over_wire, wire_settings
from .opening import existing
from .ui import UI

T = TypeVar("T")
Administers: TypeAlias = Callable[
    [Callable[[argparse.Namespace, UI, T], int]], Callable[[argparse.Namespace, UI], int]
]


def administers(
    of_brokers: Callable[[RemoteBackend], T],
    of_directory: Callable[[str], T],
    in_cluster: str,
    error: type[EmbedlogError] = InvalidArgument,
) -> Administers[T]:
    """Decorates what a command does with documents: those of brokers, or of a directory. It takes no lock.

    in_cluster: what is wrong with the directory of a broker in a cluster, which has them in ZooKeeper; `{}`
    is the directory. The command then raises `error`. It also raises the errors of `embedlog.open`.
    """

    def decorated(action: Callable[[argparse.Namespace, UI, T], int]) -> Callable[..., int]:
        @functools.wraps(action)
        def run(args: argparse.Namespace, ui: UI) -> int:
            settings = wire_settings(args, args.directory)
            if is_over_wire(args.directory):
                with open_log(args.directory, **settings) as log:
                    assert isinstance(log.backend, RemoteBackend)
                    return action(args, ui, of_brokers(log.backend))
            directory = existing(args.directory)
            if os.path.exists(os.path.join(directory, CLUSTER_FILE)):
                raise error(in_cluster.format(args.directory))
            return action(args, ui, of_directory(directory))

        return run

    return decorated
