"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings.

Changes to the settings of a topic or a group are durable. A broker's settings are given at its start: clients
may change two of them until the broker stops, and can only read the others and the log's. As there are no
ACLs, the settings that protect the broker (its limits, delete.topic.enable) can be set only at its start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeAlias, TypeVar

from ....config import LogSettings, dotted, unknown_setting
from ....errors import EmbedlogError, UnknownSetting
from ....files.names import check_not_internal
from ....synonyms import plain
from ....validation import check_group
from ....wire.apis import alter_configs, incremental_alter_configs
from ....wire.apis.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ....wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ....wire.apis.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ....wire.apis.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ....wire.error_codes import ErrorCode
from ...settings.broker_settings import BrokerSettings
from ...settings.kafka_settings import why_unused
from ...settings.topic_configs import (
    DEFAULT,
    DYNAMIC,
    GROUP,
    INT,
    LIST,
    STATIC,
    STRING,
    TOPIC,
    ConfigEntry,
    broker_name,
    config_entry,
    fixed_entries,
    parse_settings,
    topic_default_entries,
    topic_entries,
    validate_topic_configs,
    without_fixed,
)
from ..api_errors import ApiError, ErrorAnswers, error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..group_settings import FIXED as GROUP_FIXED
from ..group_settings import GroupSettings

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_RESOURCES: Final = frozenset({_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP})
_FIRST_WITH_RESOURCE_TYPES: Final = 1
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DYNAMIC: Final = frozenset({"auto_create_topics_enable", "num_partitions"})
_FACTS: Final = {"advertised.listeners": STRING, "default.replication.factor": INT, "log.dirs": STRING}
_MAX_SHOWN: Final = 60  # characters of a name from a client

_Altered = TypeVar(
    "_Altered",
    alter_configs.AlterConfigsResourceResponse,
    incremental_alter_configs.AlterConfigsResourceResponse,
)
_Texts: TypeAlias = Mapping[str, str]
_Values: TypeAlias = Mapping[str, ConfigEntry]
_Change: TypeAlias = Callable[[Sequence[Any], _Texts, _Values], dict[str, str]]


class ConfigHandlers:
    """Handles the APIs of settings."""

    def __init__(self, broker: BrokerContext, answers: ErrorAnswers) -> None:
        self._broker = broker
        self._answers = answers

    def handlers(self) -> dict[str, Handler]:
        """API -> handler."""
        return {
            "DescribeConfigs": self.describe_configs,
            "AlterConfigs": self.alter_configs,
            "IncrementalAlterConfigs": self.incremental_alter_configs,
            "ListConfigResources": self.list_config_resources,
        }

    # -- describing ------------------------------------------------------------------------------------

    def list_config_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> ListConfigResourcesResponse:
        """The brokers, the topics, and the groups that have settings of their own."""
        kinds = frozenset(request.resource_types) or _RESOURCES
        if context.version < _FIRST_WITH_RESOURCE_TYPES:
            kinds = frozenset({_CLIENT_METRICS})
        if not kinds <= _RESOURCES:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        brokers = [str(broker.node_id) for broker in self._broker.coordination.brokers()]
        names = {_BROKER: brokers, _TOPIC: self._broker.store.topics()}
        if _GROUP in kinds:
            try:
                names[_GROUP] = self._broker.group_configs.names()
            except EmbedlogError as error:
                return ListConfigResourcesResponse(error_code=error_code_for(error))
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_name=name, resource_type=kind)
                for kind in names
                if kind in kinds
                for name in names[kind]
            ]
        )

    def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> Future[DescribeConfigsResponse]:
        """Runs in another thread: a thousand topics are a lot of text. Duplicates are described once."""

        def described(resource: DescribeConfigsResource) -> DescribeConfigsResult:
            self._broker.check_wanted(context.connection)
            return self._describe(resource, request.include_synonyms)

        return self._broker.run_blocking(
            lambda: DescribeConfigsResponse(results=[*map(described, _distinct(request.resources))])
        )

    def _describe(self, resource: DescribeConfigsResource, synonyms: bool) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            values = self._values(resource.resource_type, resource.resource_name)
        except EmbedlogError as error:
            result.error_code = error_code_for(error)
            result.error_message = self._answers.message_for(error)
            return result
        keys = resource.configuration_keys
        names = None if keys is None else frozenset(keys)
        result.configs = [
            _encode_entry(value, synonyms) for value in values if names is None or value.name in names
        ]
        return result

    def _values(self, kind: int, name: str) -> list[ConfigEntry]:
        store = self._broker.store
        if kind == _TOPIC:
            return topic_entries(store.defaults, store.topic(name).settings)
        if kind == _GROUP:
            return self._group_entries(name)
        self._check_broker(kind, name)
        dynamic = [
            config_entry(BrokerSettings, setting, ((value, DYNAMIC), self._at_start(setting)))
            for setting, value in self._broker.dynamic_settings.items()
        ]
        if not name:  # the dynamic settings of all brokers
            return sorted(dynamic)
        fixed = [
            config_entry(
                BrokerSettings, setting, (self._at_start(setting),), read_only=setting not in _DYNAMIC
            )
            for setting in BrokerSettings.names()
            if setting not in self._broker.dynamic_settings and dotted(setting) not in _FACTS
        ]
        of_log = [
            config_entry(LogSettings, setting, (_with_source(value, default),), read_only=True)
            for (setting, value), default in zip(
                store.settings.as_dict().items(), LogSettings().as_dict().values(), strict=True
            )
        ]
        return sorted([*dynamic, *fixed, *of_log, *topic_default_entries(store.defaults), *self._facts()])

    def _group_entries(self, group: str) -> list[ConfigEntry]:
        if not group:
            raise ApiError(ErrorCode.INVALID_REQUEST, "settings of all groups are the broker's")
        configs = self._broker.group_configs
        own_settings, broker_settings, defaults = configs.own(group), configs.of_broker(), GroupSettings()
        entries = []
        for name, default in defaults.as_dict().items():
            values = [(own_settings[name], GROUP)] if name in own_settings else []
            values.append(_with_source(getattr(broker_settings, name), default))
            entries.append(config_entry(GroupSettings, name, values))
        return sorted(entries + fixed_entries(GROUP_FIXED))

    def _facts(self) -> list[ConfigEntry]:
        """Settings of Kafka's brokers that are read-only facts here."""
        coordination = self._broker.coordination
        own_addresses = [
            broker for broker in coordination.brokers() if broker.node_id == coordination.node_id
        ]
        listeners = ",".join(
            f"{name}://{broker.at(name)}" for broker in own_addresses for name, _, _ in broker.endpoints
        )
        values = (listeners, STATIC), ("1", DEFAULT), (self._broker.store.path, STATIC)
        return [
            ConfigEntry(name, value, source, type, read_only=True)
            for (name, type), (value, source) in zip(_FACTS.items(), values, strict=True)
        ]

    def _at_start(self, name: str) -> tuple[Any, int]:
        return _with_source(self._broker.initial_value(name), getattr(BrokerSettings(), name))

    def _check_broker(self, kind: int, name: str) -> None:
        """Raises ApiError unless it is this broker, or all of them (an empty name)."""
        if kind != _BROKER:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"resource type {kind} has no settings: topics (2), brokers (4) and groups (32) have",
            )
        node_id = self._broker.coordination.node_id
        if name not in ("", str(node_id)):
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {node_id}: send the request to the broker that it names",
            )

    # -- altering --------------------------------------------------------------------------------------

    def alter_configs(
        self, context: RequestContext, request: AlterConfigsRequest
    ) -> Future[AlterConfigsResponse]:
        """Replaces all settings of the resources."""
        altered = alter_configs.AlterConfigsResourceResponse
        return self._broker.run_blocking(
            lambda: AlterConfigsResponse(responses=self._alter_all(request, _replace_all, altered))
        )

    def incremental_alter_configs(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> Future[IncrementalAlterConfigsResponse]:
        """Changes some settings of the resources."""
        altered = incremental_alter_configs.AlterConfigsResourceResponse
        return self._broker.run_blocking(
            lambda: IncrementalAlterConfigsResponse(responses=self._alter_all(request, _change_some, altered))
        )

    def _alter_all(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        change: _Change,
        altered: type[_Altered],
    ) -> list[_Altered]:
        counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        responses = []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            response = altered(resource_type=kind, resource_name=name)
            try:
                if counts[kind, name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the request names the resource more than once")
                if len({dotted(config.name) for config in resource.configs}) < len(resource.configs):
                    raise ApiError(ErrorCode.INVALID_REQUEST, "the request names a setting more than once")
                if kind == _TOPIC:
                    self._alter_topic(name, resource.configs, change, request.validate_only)
                elif kind == _GROUP:
                    self._alter_group(name, resource.configs, change, request.validate_only)
                else:
                    self._check_broker(kind, name)
                    self._alter_broker(resource.configs, change, request.validate_only)
            except EmbedlogError as error:
                response.error_code = self._answers.code_for(error)
                response.error_message = self._answers.message_for(error)
            responses.append(response)
        return responses

    def _alter_topic(self, name: str, configs: Sequence[Any], change: _Change, validate_only: bool) -> None:
        store = self._broker.store
        with self._broker.topic_requests_lock:
            entries = {
                entry.name: entry for entry in topic_entries(store.defaults, store.topic(name).settings)
            }
            check_not_internal(name, "its settings cannot be changed over the wire")
            own_texts = {entry.name: entry.value for entry in entries.values() if entry.source == TOPIC}
            settings = change(configs, own_texts, entries)
            changes = validate_topic_configs(
                {setting: value for setting, value in settings.items() if own_texts.get(setting) != value}
            )
            changes |= dict.fromkeys(set(own_texts) - set(settings))
            if changes and not validate_only:
                self._broker.coordination.alter_topic(name, changes)

    def _alter_group(self, name: str, configs: Sequence[Any], change: _Change, validate_only: bool) -> None:
        broker = self._broker
        with broker.topic_requests_lock:
            entries = {entry.name: entry for entry in self._group_entries(name)}
            check_group(name)
            own_texts = {entry.name: entry.value for entry in entries.values() if entry.source == GROUP}
            settings = parse_settings(
                GroupSettings, without_fixed(change(configs, own_texts, entries), GROUP_FIXED)
            )
            broker.group_configs.check(settings)
            if not validate_only:
                broker.group_configs.alter(name, settings, broker.settings.max_groups)

    def _alter_broker(self, configs: Sequence[Any], change: _Change, validate_only: bool) -> None:
        broker = self._broker
        entries = {entry.name: entry for entry in self._values(_BROKER, str(broker.coordination.node_id))}
        own_texts = {entry.name: entry.value for entry in entries.values() if entry.source == DYNAMIC}
        for config in configs:
            if why := why_unused(dotted(config.name)):
                raise ApiError(ErrorCode.INVALID_REQUEST, f"{dotted(config.name)} has no effect here: {why}")
        texts = change(configs, own_texts, entries)
        for name in texts:
            if entries[name].read_only:
                is_fact = name in _FACTS and plain(name) not in BrokerSettings.names()
                how = "" if is_fact else f" --set {name}=..."
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} cannot be changed while the broker runs: set it at its start "
                    f"(embedlog serve{how})",
                )
        settings = parse_settings(BrokerSettings, texts)
        if not validate_only:
            broker.alter_settings(settings)


def _replace_all(configs: Sequence[Any], own_texts: _Texts, entries: _Values) -> dict[str, str]:
    """A resource's new settings: these and no others."""
    return {_canonical_name(config.name, entries): _required_value(config) for config in configs}


def _change_some(configs: Sequence[Any], own_texts: _Texts, entries: _Values) -> dict[str, str]:
    """A resource's new settings: its current ones with these changes."""
    settings = dict(own_texts)
    for config in configs:
        name, operation = _canonical_name(config.name, entries), config.config_operation
        if operation == _DELETE:
            settings.pop(name, None)
        elif operation == _SET:
            settings[name] = _required_value(config)
        elif operation in (_APPEND, _SUBTRACT):
            if entries[name].type != LIST:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG, f"{name} is not a list: it can only be set or deleted"
                )
            requested = _split_list(_required_value(config))
            current = _split_list(settings.get(name, entries[name].value))
            remaining = [part for part in current if part not in requested]
            settings[name] = ",".join(
                current + [part for part in requested if part not in current]
                if operation == _APPEND
                else remaining
            )
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: unknown operation {operation}")
    return settings


def _canonical_name(name: str, entries: _Values) -> str:
    """The setting's dotted name. Raises UnknownSetting."""
    if dotted(name) not in entries:
        raise UnknownSetting(unknown_setting(name, tuple(entries)))
    return dotted(name)


def _required_value(config: Any) -> str:
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{config.name[:_MAX_SHOWN]} must have a value")
    value: str = config.value
    return value


def _split_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _distinct(resources: Sequence[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    return list(
        {(resource.resource_type, resource.resource_name): resource for resource in resources}.values()
    )


def _with_source(value: object, default: object) -> tuple[object, int]:
    """A value from the start of the broker, and its source."""
    return value, DEFAULT if value == default else STATIC


def _encode_entry(value: ConfigEntry, synonyms: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=value.name,
        value=None if value.sensitive else value.value,
        read_only=value.read_only,
        is_sensitive=value.sensitive,
        is_default=value.source == DEFAULT,
        config_source=value.source,
        synonyms=[
            DescribeConfigsSynonym(
                name=value.name if source in (TOPIC, GROUP) else broker_name(value.name),
                value=text,
                source=source,
            )
            for text, source in value.synonyms
            if synonyms
        ],
        config_type=value.type,
    )
