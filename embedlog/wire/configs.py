"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: the settings of topics and brokers.

A resource is a topic (type 2) or a broker (type 4), and its name. The source of a value is 1 for a topic's
own, 4 for the broker's file, 5 for the default.
"""

from __future__ import annotations

from typing import ClassVar, Final

from .messages import Request, Response
from .schema import Api, array, boolean, int8, int16, int32, message, string

DESCRIBE_CONFIGS: Final = Api("DescribeConfigs", key=32, max_version=4, flexible_since=4)
ALTER_CONFIGS: Final = Api("AlterConfigs", key=33, max_version=2, flexible_since=2)
INCREMENTAL_ALTER_CONFIGS: Final = Api("IncrementalAlterConfigs", key=44, max_version=1, flexible_since=1)


# -- DescribeConfigs -----------------------------------------------------------------------------------


@message
class DescribeConfigsResource:
    """Whose settings, and which; null for all."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string, nullable=0)


@message
class DescribeConfigsRequest(Request):
    """What are the settings?"""

    api: ClassVar[Api] = DESCRIBE_CONFIGS
    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@message
class DescribeConfigsSynonym:
    """Where else the setting has a value, the first that counts first."""

    name: str = string()
    value: str | None = string(nullable=0)
    source: int = int8()


@message
class DescribeConfigsResourceResult:
    """A setting. Whether it is the default is said by v0 alone, later its source is."""

    name: str = string()
    value: str | None = string(nullable=0)
    read_only: bool = boolean()
    is_default: bool = boolean(until=0)
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable=3)


@message
class DescribeConfigsResult:
    """The settings of one resource."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult)


@message
class DescribeConfigsResponse(Response):
    """The settings."""

    api: ClassVar[Api] = DESCRIBE_CONFIGS
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


# -- AlterConfigs --------------------------------------------------------------------------------------


@message
class AlterableConfig:
    """A setting and its new value."""

    name: str = string()
    value: str | None = string(nullable=0)


@message
class AlterConfigsResource:
    """All settings that the resource is to have of its own."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


@message
class AlterConfigsRequest(Request):
    """Replace settings, or only see whether they could be."""

    api: ClassVar[Api] = ALTER_CONFIGS
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


@message
class AlterConfigsResourceResponse:
    """What became of one resource's settings."""

    error_code: int = int16()
    error_message: str | None = string(nullable=0)
    resource_type: int = int8()
    resource_name: str = string()


@message
class AlterConfigsResponse(Response):
    """Whose settings were replaced."""

    api: ClassVar[Api] = ALTER_CONFIGS
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


# -- IncrementalAlterConfigs ---------------------------------------------------------------------------


@message
class IncrementalAlterableConfig:
    """A change: 0 sets, 1 removes, 2 appends to a list, 3 takes from it."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable=0)


@message
class IncrementalAlterConfigsResource:
    """The changes to one resource."""

    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig)


@message
class IncrementalAlterConfigsRequest(Request):
    """Change settings, or only see whether they could be."""

    api: ClassVar[Api] = INCREMENTAL_ALTER_CONFIGS
    resources: list[IncrementalAlterConfigsResource] = array(IncrementalAlterConfigsResource)
    validate_only: bool = boolean()


@message
class IncrementalAlterConfigsResponse(Response):
    """Whose settings were changed."""

    api: ClassVar[Api] = INCREMENTAL_ALTER_CONFIGS
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
