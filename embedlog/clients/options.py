"""The options of `log.producer` and `log.consumer`, as types for a type checker.

The signatures of the clients document options and defaults; a test compares these lists with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from ..errors import InvalidType
from ..synonyms import CONSUMER_OPTIONS, PRODUCER_OPTIONS, Synonyms
from ..validation import renamed
from .assignment import RebalanceCallback
from .assignors import Assignor
from .batch import Callback
from .offset_store import OffsetStore
from .partitioner import Partitioner
from .producer import Encoder


class ProducerOptions(TypedDict, total=False):
    """Keyword options of producer.Producer."""

    linger_ms: float
    batch_bytes: int
    compression: str | int | None
    partitioner: Partitioner | None
    encoder: Encoder | None
    key_encoder: Encoder | None
    callback: Callback | None
    buffer_bytes: int
    max_block_ms: float
    flush: bool
    clock: Callable[[], int]


class ConsumerOptions(TypedDict, total=False):
    """Keyword options of consumer.Consumer."""

    auto_offset_reset: str
    auto_commit: bool | None
    auto_commit_interval_ms: int
    assignors: Sequence[str | Assignor]
    isolation_level: str
    max_poll_records: int
    fetch_max_bytes: int
    max_poll_interval_ms: int
    client_id: str
    group_instance_id: str | None
    offset_store: OffsetStore | None
    stop_at_end: bool
    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None
    metadata_refresh_ms: int


_CALLABLES: Final = frozenset(
    ("partitioner", "encoder", "key_encoder", "callback", "clock", "on_assigned", "on_revoked", "on_lost")
)


def producer_options(given: Mapping[str, object]) -> ProducerOptions:
    """A producer's options by canonical name. Raises as `_checked`."""
    return cast(ProducerOptions, _checked(given, ProducerOptions.__annotations__, PRODUCER_OPTIONS))


def consumer_options(given: Mapping[str, object]) -> ConsumerOptions:
    """A consumer's options by canonical name. Raises as `_checked`."""
    return cast(ConsumerOptions, _checked(given, ConsumerOptions.__annotations__, CONSUMER_OPTIONS))


def _checked(given: Mapping[str, object], known: Mapping[str, object], synonyms: Synonyms) -> dict[str, Any]:
    """Raises UnknownSetting for an unknown name, with a suggestion; InvalidArgument if an option is given
    under
    two names; InvalidType for a callback that is not callable, which another thread would find too late."""
    options = renamed(given, known, synonyms)
    for name, value in options.items():
        if name in _CALLABLES and value is not None and not callable(value):
            raise InvalidType(f"{name} must be callable, not {type(value).__name__}")
    return options
