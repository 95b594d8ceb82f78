"""Administration over the wire: creates, alters and deletes topics, and deletes records.

Settings that embedlog has are checked here, so that mistakes raise the same errors as with a directory;
others are sent to the broker unchanged, which may know them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...config import MAX_INT64, TopicSettings, as_texts, dotted
from ...errors import (
    BrokerUnavailable,
    EmbedlogError,
    InvalidArgument,
    InvalidSetting,
    InvalidType,
    OffsetOutOfRange,
    TopicExists,
    TopicNotFound,
    UnknownSetting,
    shown,
)
from ...files.names import check_topic_name
from ...model import TopicDescription, TopicPartition
from ...store.topic import check_more_partitions, check_one_replica, check_partition_count
from ...synonyms import plain
from ...wire.apis.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from ...wire.apis.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ...wire.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from ...wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from ...wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ...wire.error_codes import ErrorCode
from ...wire_client.connection import NotKafka
from ..port import TopicConfigs
from .brokers import Brokers, check_code
from .lookups import Lookups
from .metadata import TOPIC, Metadata, settable

_BROKER_DEFAULT: Final = -1
_SET: Final = 0
_REMOVE: Final = 1


class Topics:
    """Implements `port.TopicAdmin`. Thread-safe."""

    def __init__(self, brokers: Brokers, metadata: Metadata, lookups: Lookups) -> None:
        self._brokers = brokers
        self._metadata = metadata
        self._lookups = lookups

    def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        exist_ok: bool = False,
        replication_factor: int | None = None,
    ) -> TopicDescription:
        """See `Log.create_topic`."""
        create = self._creation(name, partitions, settings, replication_factor, validate_only=False)
        try:
            self._change_once(create, TopicExists)
        except TopicExists:
            if not exist_ok:
                raise TopicExists(
                    f"topic {name!r} exists already: exist_ok=True takes it as it is, alter_topic changes it"
                ) from None
        return self._wait_for_topic(name, partitions)

    def validate_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        *,
        replication_factor: int | None = None,
    ) -> TopicConfigs:
        """See `port.TopicAdmin`."""
        validate = self._creation(name, partitions, settings, replication_factor, validate_only=True)
        return settable(self._brokers.retried(validate).configs or ())

    def _creation(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, Any],
        replication_factor: int | None,
        *,
        validate_only: bool,
    ) -> Callable[[float], CreatableTopicResult]:
        """An attempt to create a topic. Raises the errors of its arguments."""
        check_topic_name(name)
        check_partition_count(partitions)
        if self._brokers.reaches_owner:
            check_one_replica(replication_factor)
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=_BROKER_DEFAULT if replication_factor is None else replication_factor,
            configs=[
                CreatableTopicConfig(name=key, value=value) for key, value in _encoded(settings).items()
            ],
        )

        def attempt(deadline: float) -> CreatableTopicResult:
            request = CreateTopicsRequest(
                topics=[topic], timeout_ms=self._timeout_ms(deadline), validate_only=validate_only
            )
            controller = self._metadata.controller(deadline)
            response = self._brokers.ask(controller, request, CreateTopicsResponse, deadline)
            result: CreatableTopicResult
            [result] = _results_for(response.topics, name)
            self._check(result.error_code, result.error_message, name, settings)
            return result

        return attempt

    def alter_topic(self, name: str, settings: Mapping[str, Any]) -> TopicDescription:
        """See `Log.alter_topic`."""
        self._metadata.view(name)
        assigned = {key: value for key, value in settings.items() if value is not None}
        changes = [
            AlterableConfig(name=key, config_operation=_SET, value=value)
            for key, value in _encoded(assigned).items()
        ]
        for key in settings.keys() - assigned.keys():
            changes.append(AlterableConfig(name=dotted(_own_name(key)), config_operation=_REMOVE, value=None))
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=changes)

        def attempt(deadline: float) -> None:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            response = self._brokers.ask_any(request, IncrementalAlterConfigsResponse, deadline)
            for result in response.responses:
                self._check(result.error_code, result.error_message, name, settings)

        if changes:
            self._brokers.retried(attempt)
        self._metadata.forget_settings(name)
        return self._metadata.describe(name)

    def create_partitions(self, name: str, partitions: int) -> TopicDescription:
        """See `Log.create_partitions`."""
        check_partition_count(partitions)
        count = len(self._metadata.view(name).leaders)
        check_more_partitions(name, count, partitions)

        def attempt(deadline: float) -> None:
            topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
            request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._timeout_ms(deadline))
            controller = self._metadata.controller(deadline)
            response = self._brokers.ask(controller, request, CreatePartitionsResponse, deadline)
            [result] = _results_for(response.results, name)
            self._check(result.error_code, result.error_message, name, {})

        self._change_once(attempt, InvalidArgument)
        return self._wait_for_topic(name, partitions)

    def delete_topic(self, name: str) -> None:
        """See `Log.delete_topic`."""
        self._metadata.view(name)

        def attempt(deadline: float) -> None:
            request = DeleteTopicsRequest(topic_names=[name], timeout_ms=self._timeout_ms(deadline))
            controller = self._metadata.controller(deadline)
            response = self._brokers.ask(controller, request, DeleteTopicsResponse, deadline)
            [result] = _results_for(response.responses, name)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicNotFound(f"no topic {name!r} at {self._brokers.path}")
            self._check(result.error_code, result.error_message, name, {})

        self._change_once(attempt, TopicNotFound)
        self._metadata.forget_settings(name)
        self._until(lambda: name not in self._metadata.names())
        self._metadata.forget(name)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """See `Log.delete_records`."""
        name = TopicPartition(topic, partition)

        def attempt(deadline: float) -> int:
            leader = self._metadata.leader(name, deadline)
            if before_offset > MAX_INT64:
                raise self._past_the_end(name, before_offset)
            records = DeleteRecordsPartition(partition_index=partition, offset=before_offset)
            topic_records = DeleteRecordsTopic(name=topic, partitions=[records])
            request = DeleteRecordsRequest(topics=[topic_records], timeout_ms=self._timeout_ms(deadline))
            with self._metadata.asking([name]):
                response = self._brokers.ask(leader, request, DeleteRecordsResponse, deadline)
            [topic_result] = _results_for(response.topics, topic)
            [partition_result] = topic_result.partitions
            if partition_result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise self._past_the_end(name, before_offset)
            self._metadata.check_code(
                partition_result.error_code, topic, f"{name}: deleting records before {before_offset:,}"
            )
            return int(partition_result.low_watermark)

        return self._brokers.retried(attempt)

    # -- inside ------------------------------------------------------------------------------------------

    def _change_once(self, attempt: Callable[[float], object], already: type[EmbedlogError]) -> None:
        """Make a change that cannot be made twice. After a lost response, `already` (the error of a change
        that has been made) means success."""
        lost = False

        def tried(deadline: float) -> None:
            nonlocal lost
            try:
                attempt(deadline)
            except BrokerUnavailable:
                lost = True
                raise
            except already:
                if not lost:
                    raise

        self._brokers.retried(tried)

    def _past_the_end(self, name: TopicPartition, offset: int) -> OffsetOutOfRange:
        edges = self._lookups.offsets(*name)[name.partition]
        return OffsetOutOfRange(
            f"{name}: cannot delete records up to {shown(offset)}: the log ends at {edges.log_end_offset:,}",
            offset=offset,
            log_start_offset=edges.log_start_offset,
            log_end_offset=edges.log_end_offset,
        )

    def _check(self, code: int, message: str | None, name: str, settings: Mapping[str, Any]) -> None:
        """Raises Retry, or the code's error."""
        if code == ErrorCode.NOT_CONTROLLER:
            self._metadata.forget_controller()
        try:
            check_code(code, f"topic {name!r}", message, {"topic": name})
        except InvalidSetting as error:
            unknown = [key for key in settings if _own_name(key) not in TopicSettings.names()]
            raise (UnknownSetting(str(error)) if unknown else error) from None

    def _wait_for_topic(self, name: str, partitions: int) -> TopicDescription:
        """The topic, once the brokers know it and its partitions have leaders."""

        def is_known() -> bool:
            self._metadata.forget(name)
            try:
                leaders = self._metadata.view(name).leaders
            except TopicNotFound:
                return False
            return len(leaders) >= partitions and min(leaders) >= 0

        self._until(is_known)
        self._metadata.forget_settings(name)
        return self._metadata.describe(name)

    def _until(self, is_known: Callable[[], bool]) -> None:
        """Wait until the cluster shows a change that has been made; at most request_timeout_ms."""
        until = time.monotonic() + self._brokers.settings.request_timeout_ms / 1000
        while not is_known() and time.monotonic() < until:
            self._brokers.pause(self._brokers.settings.retry_backoff_ms / 1000)
            self._brokers.check_open()

    def _timeout_ms(self, deadline: float) -> int:
        return max(int((self._brokers.limit(deadline) - time.monotonic()) * 1000), 1)


def _results_for(results: list[Any], name: str) -> list[Any]:
    """The result for a topic. Raises NotKafka."""
    of_topic = [result for result in results if result.name == name]
    if len(of_topic) != 1:
        raise NotKafka(f"the response has {len(of_topic)} results for topic {name!r}")
    return of_topic


def _own_name(typed: str) -> str:
    """The setting's own name; an unknown name is left to the brokers."""
    resolved = TopicSettings.resolved(typed, None)
    return plain(typed) if resolved is None else resolved[0]


def _encoded(settings: Mapping[str, Any]) -> dict[str, str]:
    """Encode settings for the wire. Raises InvalidSetting, InvalidType."""
    written: dict[str, Any] = {}
    for typed, value in settings.items():
        name = _own_name(typed)
        if name in TopicSettings.names():
            value = TopicSettings.parse({typed: value})[name]
        elif not isinstance(value, str | int | float):
            raise InvalidType(f"{typed} must be a string or a number, not {type(value).__name__}")
        written[name] = value
    return as_texts(written)
