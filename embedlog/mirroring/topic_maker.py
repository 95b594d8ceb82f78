"""Makes the topics of a mirror's target, before a record is copied into them.

    the target lacks the topic     it is asked what it would give the topic, told what is to be otherwise
                                   (topic_settings.py), and creates it. If it refuses, setting by setting is
                                   tried: what it refuses is left out with a warning, unless it keeps records
    it has the topic               which must keep what the source's keeps
    it has fewer partitions        it gets more

Invariant: a topic that would lose records of its source by its settings is not made, or not filled: the
mirror says which command settles it.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ..backends.local import WriterBackend
from ..backends.port import Backend, TopicConfigs
from ..errors import BrokerError, InvalidSetting, TopicExists, TopicNotFound, UnknownSetting
from ..model import TopicDescription
from ..store.topic import check_one_replica
from ..wire.error_codes import ErrorCode
from .source import Source
from .topic_settings import KEEPING, for_brokers, for_directory, missing

logger = logging.getLogger(__name__)

_REFUSALS: Final = (InvalidSetting, UnknownSetting, BrokerError)


class PlannedTopic(NamedTuple):
    """A topic as it will be in the target: the one that exists, or the settings to create it with and those
    that are left out, with the reasons. `effective` has all settings as far as they are known."""

    existing: TopicDescription | None
    settings: Mapping[str, str]
    omitted: Mapping[str, str]
    effective: Mapping[str, str]


class TopicMaker:
    """For the mirror's own thread. Raises InvalidArgument for replicas that the target cannot have."""

    def __init__(self, backend: Backend, replication_factor: int | None) -> None:
        self._backend = backend
        self._replicas = replication_factor
        self._is_directory = isinstance(backend, WriterBackend)
        if self._is_directory:
            check_one_replica(replication_factor)

    def make(self, source: Source, topic: TopicDescription, positions: Callable[[], object]) -> None:
        """Create the topic in the target, or add partitions to it. `positions`: true if it has been copied
        before.

        Raises InvalidSetting if it would keep less there, or does; TopicNotFound if the source has it no
        more; and the errors of `Log.create_topic`.
        """
        name = source.target_topic(topic.name)
        existing = self._existing(name)
        if existing is None:
            try:
                self._create(source, topic, name)
                return
            except TopicExists:  # made by another one meanwhile
                existing = self._backend.describe_topic(name)
        self._check_keeps(source, topic, name, positions)
        if existing.partitions < topic.partitions:
            self._backend.topic_admin.create_partitions(name, topic.partitions)

    def check(self, source: Source, topic: TopicDescription, positions: Callable[[], object]) -> PlannedTopic:
        """What `make` would do, which nothing of is done. Raises as `make`."""
        name = source.target_topic(topic.name)
        existing = self._existing(name)
        if existing is None:
            return self._planned(source, topic, name)
        self._check_keeps(source, topic, name, positions)
        return PlannedTopic(existing, {}, {}, self._backend.topic_configs(name).effective)

    def _existing(self, name: str) -> TopicDescription | None:
        self._backend.forget_metadata(name)
        try:
            return self._backend.describe_topic(name)
        except TopicNotFound:
            return None

    def _create(self, source: Source, topic: TopicDescription, name: str) -> None:
        planned = self._planned(source, topic, name)
        self._backend.topic_admin.create_topic(
            name, topic.partitions, planned.settings, replication_factor=self._replicas
        )
        for setting, why in planned.omitted.items():
            logger.warning("%s: topic %r is made without %s: %s", self._backend.path, name, setting, why)

    def _planned(self, source: Source, topic: TopicDescription, name: str) -> PlannedTopic:
        configs = source.backend.topic_configs(topic.name)
        if not configs.effective:
            logger.warning(
                "%s: the settings of topic %r may not be seen: what is copied is kept without limit",
                *(source.path, topic.name),
            )
        kept = source.backend.topic_settings(topic.name)

        def validate(settings: Mapping[str, str]) -> TopicConfigs:
            return self._backend.topic_admin.validate_topic(
                name, topic.partitions, settings, replication_factor=self._replicas
            )

        try:
            defaults = validate({}).effective
        except _REFUSALS as error:
            _check_refusal(error)
            defaults = {}
        if self._is_directory:
            stated = for_directory(configs, kept, defaults)
        else:
            stated = for_brokers(configs, kept, defaults)
        settings, omitted = stated.settings, dict(stated.omitted)
        try:
            validate(settings)
        except _REFUSALS as error:
            _check_refusal(error)
            settings, refused = self._one_by_one(settings, validate, source, name)
            omitted |= refused
        return PlannedTopic(None, settings, omitted, {**defaults, **settings})

    def _one_by_one(
        self,
        settings: Mapping[str, str],
        validate: Callable[[dict[str, str]], object],
        source: Source,
        name: str,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """The settings that the target accepts, and why it refuses the others. Raises InvalidSetting if one
        of them keeps records."""
        accepted: dict[str, str] = {}
        refused: dict[str, str] = {}
        for setting, value in settings.items():
            try:
                validate({**accepted, setting: value})
            except _REFUSALS as error:
                _check_refusal(error)
                if setting in KEEPING:
                    raise InvalidSetting(
                        f"{self._backend.path}: topic {name!r} is not made: to keep what {source.path} keeps "
                        f"it needs {setting}={value}, which is refused ({error}). Create it there with "
                        "settings that keep as much, or exclude it"
                    ) from error
                refused[setting] = str(error)
            else:
                accepted[setting] = value
        return accepted, refused

    def _check_keeps(
        self, source: Source, topic: TopicDescription, name: str, positions: Callable[[], object]
    ) -> None:
        """Raises InvalidSetting if the existing topic keeps less than the source's, unless someone has told
        it to since its first records came."""
        configs = self._backend.topic_configs(name)
        if not configs.effective:
            logger.warning(
                "%s: the settings of topic %r may not be seen: make sure that it keeps what is copied",
                *(self._backend.path, name),
            )
            return
        source.backend.topic_configs(topic.name)
        kept = source.backend.topic_settings(topic.name)
        target = self._backend.topic_settings(name)
        changes = missing(kept, target, at_brokers=not self._is_directory)
        if not changes:
            return
        there = ", ".join(f"{setting} is {configs.effective.get(setting, 'unknown')}" for setting in changes)
        less = f"{self._backend.path}: topic {name!r} keeps less than that of {source.path} ({there})"
        if changes.keys() <= configs.own and positions():
            logger.warning("%s, as it was told to", less)
            return
        words = ["embedlog", "topics", "alter", self._backend.path, name]
        words += [word for change in changes.items() for word in ("--config", "=".join(change))]
        raise InvalidSetting(
            f"{less}, so nothing is copied into it: settle it with `{shlex.join(words)}`, or exclude it"
        )


def _check_refusal(error: Exception) -> None:
    """Raises the error if it is about something else than settings."""
    if isinstance(error, BrokerError) and error.code != ErrorCode.POLICY_VIOLATION:
        raise error
