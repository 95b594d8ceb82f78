"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: settings of topics, and of the broker.

A topic's settings are changed durably. The broker's are given when it is started: a client may change two of
them until the broker stops, and can only read the others and the log's. Without ACLs, the settings that
protect the broker (its limits, delete.topic.enable) can be set only when it is started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeAlias, TypeVar

from ...config import LogSettings, unknown_setting
from ...errors import EmbedlogError, UnknownSetting
from ...files.names import check_not_internal
from ...wire.apis import alter_configs, incremental_alter_configs
from ...wire.apis.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from ...wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from ...wire.apis.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ...wire.error_codes import ErrorCode
from ..api_errors import ApiError, error_code_for
from ..broker_context import BrokerContext, Handler, RequestContext
from ..settings import BrokerSettings
from ..topic_configs import (
    CHANGED,
    DEFAULT,
    GIVEN_AT_START,
    INT,
    LIST,
    OWN,
    STRING,
    Value,
    broker_name,
    checked,
    dotted,
    parsed,
    topic_defaults,
    topic_values,
    value_of,
)

_TOPIC, _BROKER = 2, 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DYNAMIC: Final = frozenset({"auto_create_topics_enable", "num_partitions"})
_FACTS: Final = {"advertised.listeners": STRING, "default.replication.factor": INT, "log.dirs": STRING}
_SHOWN: Final = 60  # characters of a name that a client has made up

_Altered = TypeVar(
    "_Altered",
    alter_configs.AlterConfigsResourceResponse,
    incremental_alter_configs.AlterConfigsResourceResponse,
)
_Texts: TypeAlias = Mapping[str, str]
_Values: TypeAlias = Mapping[str, Value]
_Change: TypeAlias = Callable[[Sequence[Any], _Texts, _Values], dict[str, str]]


class ConfigHandlers:
    """Implements the APIs of settings."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def handlers(self) -> dict[str, Handler]:
        """API -> who answers it."""
        return {
            "DescribeConfigs": self.describe_configs,
            "AlterConfigs": self.alter_configs,
            "IncrementalAlterConfigs": self.incremental_alter_configs,
        }

    # -- describing ------------------------------------------------------------------------------------

    def describe_configs(
        self, context: RequestContext, request: DescribeConfigsRequest
    ) -> Future[DescribeConfigsResponse]:
        """In another thread: of a thousand topics that is a lot of text. What is named twice is told once."""
        return self._broker.run_blocking(
            lambda: DescribeConfigsResponse(
                results=[self._describe(each, request.include_synonyms) for each in _once(request.resources)]
            )
        )

    def _describe(self, resource: DescribeConfigsResource, synonyms: bool) -> DescribeConfigsResult:
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            values = self._values(resource.resource_type, resource.resource_name)
        except EmbedlogError as error:
            result.error_code, result.error_message = _told(error)
            return result
        keys = resource.configuration_keys
        wanted = None if keys is None else frozenset(keys)
        result.configs = [
            _described(value, synonyms) for value in values if wanted is None or value.name in wanted
        ]
        return result

    def _values(self, kind: int, name: str) -> list[Value]:
        store = self._broker.store
        if kind == _TOPIC:
            return topic_values(store.defaults, store.topic(name).settings)
        self._check_broker(kind, name)
        altered = [
            value_of(BrokerSettings, each, ((value, CHANGED), self._at_start(each)))
            for each, value in self._broker.dynamic_settings.items()
        ]
        if not name:  # the settings that were changed for all brokers
            return sorted(altered)
        fixed = [
            value_of(BrokerSettings, each, (self._at_start(each),), read_only=each not in _DYNAMIC)
            for each in BrokerSettings.names()
            if each not in self._broker.dynamic_settings
        ]
        of_log = [
            value_of(LogSettings, each, (_started(value, default),), read_only=True)
            for (each, value), default in zip(
                store.settings.as_dict().items(), LogSettings().as_dict().values(), strict=True
            )
        ]
        return sorted([*altered, *fixed, *of_log, *topic_defaults(store.defaults), *self._facts()])

    def _facts(self) -> list[Value]:
        """Settings of Kafka's brokers that are facts here, and no settings."""
        coordination = self._broker.coordination
        own = [broker for broker in coordination.brokers() if broker.node_id == coordination.node_id]
        listeners = ",".join(f"PLAINTEXT://{broker}" for broker in own)
        found = (listeners, GIVEN_AT_START), ("1", DEFAULT), (self._broker.store.path, GIVEN_AT_START)
        return [
            Value(name, value, source, type, read_only=True)
            for (name, type), (value, source) in zip(_FACTS.items(), found, strict=True)
        ]

    def _at_start(self, name: str) -> tuple[Any, int]:
        return _started(self._broker.initial_value(name), getattr(BrokerSettings(), name))

    def _check_broker(self, kind: int, name: str) -> None:
        """Is it this broker, or (by an empty name) all of them? Raises Refusal."""
        if kind != _BROKER:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"settings are those of topics (2) and brokers (4), not of {kind}"
            )
        own = self._broker.coordination.node_id
        if name not in ("", str(own)):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"this is broker {own}: ask the one that you mean")

    # -- altering --------------------------------------------------------------------------------------

    def alter_configs(
        self, context: RequestContext, request: AlterConfigsRequest
    ) -> Future[AlterConfigsResponse]:
        """All settings that the resources are to have of their own."""
        altered = alter_configs.AlterConfigsResourceResponse
        return self._broker.run_blocking(
            lambda: AlterConfigsResponse(responses=self._alter_all(request, _replaced, altered))
        )

    def incremental_alter_configs(
        self, context: RequestContext, request: IncrementalAlterConfigsRequest
    ) -> Future[IncrementalAlterConfigsResponse]:
        """Changes to what they have."""
        altered = incremental_alter_configs.AlterConfigsResourceResponse
        return self._broker.run_blocking(
            lambda: IncrementalAlterConfigsResponse(responses=self._alter_all(request, _changed, altered))
        )

    def _alter_all(
        self,
        request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
        change: _Change,
        altered: type[_Altered],
    ) -> list[_Altered]:
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
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
                else:
                    self._check_broker(kind, name)
                    self._alter_broker(resource.configs, change, request.validate_only)
            except EmbedlogError as error:
                response.error_code, response.error_message = _told(error)
            responses.append(response)
        return responses

    def _alter_topic(self, name: str, configs: Sequence[Any], change: _Change, validate_only: bool) -> None:
        store = self._broker.store
        with self._broker.topics_lock:
            shown = {value.name: value for value in topic_values(store.defaults, store.topic(name).settings)}
            check_not_internal(name, "its settings are not changed over the wire")
            own = {value.name: value.value for value in shown.values() if value.source == OWN}
            wanted = change(configs, own, shown)
            changes = checked({each: value for each, value in wanted.items() if own.get(each) != value})
            changes |= dict.fromkeys(set(own) - set(wanted))
            if changes and not validate_only:
                self._broker.coordination.alter_topic(name, changes)

    def _alter_broker(self, configs: Sequence[Any], change: _Change, validate_only: bool) -> None:
        broker = self._broker
        shown = {value.name: value for value in self._values(_BROKER, str(broker.coordination.node_id))}
        own = {value.name: value.value for value in shown.values() if value.source == CHANGED}
        wanted = change(configs, own, shown)
        for name in wanted:
            if shown[name].read_only:
                how = "" if name in _FACTS else f" --set {name}=..."
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} cannot be changed while the broker runs: its operator sets it when starting it "
                    f"(embedlog serve{how})",
                )
        settings = parsed(BrokerSettings, wanted)
        if not validate_only:
            broker.alter_settings(settings)


def _replaced(configs: Sequence[Any], own: _Texts, shown: _Values) -> dict[str, str]:
    """What a resource is to have of its own: these, and no others."""
    return {_known(config.name, shown): _stated(config) for config in configs}


def _changed(configs: Sequence[Any], own: _Texts, shown: _Values) -> dict[str, str]:
    """What a resource is to have of its own: what it has, with these changes."""
    wanted = dict(own)
    for config in configs:
        name, operation = _known(config.name, shown), config.config_operation
        if operation == _DELETE:
            wanted.pop(name, None)
        elif operation == _SET:
            wanted[name] = _stated(config)
        elif operation in (_APPEND, _SUBTRACT):
            if shown[name].type != LIST:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} is no list: it can be set, or deleted")
            given = _parts(_stated(config))
            before = _parts(wanted.get(name, shown[name].value))
            kept = [part for part in before if part not in given]
            wanted[name] = ",".join(
                before + [part for part in given if part not in before] if operation == _APPEND else kept
            )
        else:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {operation}")
    return wanted


def _known(name: str, shown: _Values) -> str:
    """The setting's name as it is shown. Raises UnknownSetting."""
    if dotted(name) not in shown:
        raise UnknownSetting(unknown_setting(name, tuple(shown)))
    return dotted(name)


def _stated(config: Any) -> str:
    if config.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{config.name[:_SHOWN]} must have a value")
    value: str = config.value
    return value


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _once(resources: Sequence[DescribeConfigsResource]) -> list[DescribeConfigsResource]:
    return list({(each.resource_type, each.resource_name): each for each in resources}.values())


def _started(value: object, default: object) -> tuple[object, int]:
    """A value that there has been from the start on, and where it comes from."""
    return value, DEFAULT if value == default else GIVEN_AT_START


def _described(value: Value, synonyms: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=value.name,
        value=value.value,
        read_only=value.read_only,
        is_default=value.source == DEFAULT,
        config_source=value.source,
        synonyms=[
            DescribeConfigsSynonym(
                name=value.name if source == OWN else broker_name(value.name), value=text, source=source
            )
            for text, source in value.synonyms
            if synonyms
        ],
        config_type=value.type,
    )


def _told(error: EmbedlogError) -> tuple[ErrorCode, str]:
    return error_code_for(error), str(error)
