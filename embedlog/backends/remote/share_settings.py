"""What a queue needs of a share group of brokers: share groups, with renewals, and the group's settings.

    share.auto.offset.reset        earliest: a queue has every job of its topic
    share.isolation.level          read_committed: no job of a transaction that was aborted
    share.record.lock.duration.ms  lock_ms
    share.delivery.count.limit     more than max_deliveries

Brokers archive a record whose last delivery fails, and make no dead letter. So their limit is set higher than
the queue's: what is delivered once more than the queue allows becomes a dead letter then.

Settings are changed one by one, and only if they differ. What may not be changed is logged, unless the queue
would break a promise with it.

Source: KIP-932, KIP-1222 (renewals), KIP-1240 (more settings of groups).
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from ...errors import (
    AuthorizationFailed,
    BrokerUnavailable,
    EmbedlogError,
    InvalidArgument,
    UnsupportedByBackend,
)
from ...model import ShareGroupOptions
from ...wire.apis.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ...wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ...wire.apis.share_fetch import ShareFetchRequest
from ...wire.apis.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ...wire.error_codes import ErrorCode
from .brokers import Brokers, check_code
from .coordinators import Coordinators

_GROUP: Final = 32  # a type of resources
_SET: Final = 0
_LEAVE: Final = -1
_WITH_RENEWALS: Final = 2  # a version of ShareFetch
_KAFKAS_LIMIT: Final = 5  # group.share.delivery.count.limit, by default
_KAFKAS_LONGEST_LIMIT: Final = 10  # group.share.max.delivery.count.limit, by default
_SPARE_DELIVERIES: Final = 5
_RESET: Final = "share.auto.offset.reset"
_ISOLATION: Final = "share.isolation.level"
_LOCK: Final = "share.record.lock.duration.ms"
_LIMIT: Final = "share.delivery.count.limit"
_RENEWALS: Final = "share.renew.acknowledge.enable"

_logger = logging.getLogger(__name__)


class GroupLimits(NamedTuple):
    """The options of the queue that was opened last, and after how many deliveries the brokers archive."""

    options: ShareGroupOptions
    broker_deliveries: int


class ShareSettings:
    """Prepares share groups for queues. Thread-safe."""

    def __init__(self, brokers: Brokers, coordinators: Coordinators) -> None:
        self._brokers = brokers
        self._coordinators = coordinators

    def prepare(self, group: str, options: ShareGroupOptions) -> GroupLimits:
        """Raises UnsupportedByBackend, InvalidArgument if the group cannot keep what the options promise."""
        if options.ordered_by_key:
            raise UnsupportedByBackend(
                "ordered_by_key: share groups of brokers deliver the jobs of a key in parallel; open the "
                "log's directory, or read the topic with a consumer group, which keeps their order"
            )
        self._check_supported(group)
        values = self._brokers.retried(lambda deadline: self._values(group, deadline))
        if values.get(_RENEWALS) == "false":
            raise UnsupportedByBackend(
                f"group {group!r} has {_RENEWALS}=false: a job that takes longer than lock_ms would be done "
                "twice; set it to true"
            )
        for name, value, lack in (
            (_RESET, "earliest", "it may begin after the first jobs"),
            (_ISOLATION, "read_committed", "it may deliver jobs of aborted transactions"),
        ):
            error = None if values.get(name) == value else self._set(group, name, value)
            if error is not None:
                _logger.warning("queue group %r: %s is not %s: %s (%s)", group, name, value, lack, error)
        self._set_lock(group, options.lock_ms, values)
        return GroupLimits(options, self._deliveries(group, options.max_deliveries, values))

    def _check_supported(self, group: str) -> None:
        def attempt(deadline: float) -> bool:
            failure: BrokerUnavailable | None = None
            for address in self._brokers.addresses():
                try:
                    with self._brokers.connection(address, self._brokers.limit(deadline)) as connection:
                        return connection.has(ShareFetchRequest, _WITH_RENEWALS)
                except BrokerUnavailable as error:
                    failure = error
            assert failure is not None, "there is a bootstrap server"
            raise failure

        missing = UnsupportedByBackend(
            f"{self._brokers.path}: queues over the wire need share groups whose locks can be renewed: "
            "Apache Kafka 4.2 or newer with share.version=1, or `embedlog serve`. Otherwise open the log's "
            "directory"
        )
        if not self._brokers.retried(attempt):
            raise missing
        # A broker offers the requests also where the cluster's feature is off: a leave of nobody tells.
        nobody = ShareGroupHeartbeatRequest(
            group_id=group, member_id="nobody", member_epoch=_LEAVE, rack_id=None
        )

        def checked(response: ShareGroupHeartbeatResponse) -> int:
            if response.error_code not in _OF_NOBODY:
                self._coordinators.check(group, response.error_code, f"share group {group!r}")
            return response.error_code

        if self._coordinators.ask(group, nobody, ShareGroupHeartbeatResponse, checked) == _UNSUPPORTED:
            raise missing

    def _values(self, group: str, deadline: float) -> dict[str, str | None]:
        """The group's settings; none if they may not be seen."""
        resource = DescribeConfigsResource(resource_type=_GROUP, resource_name=group, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        [result] = self._brokers.ask_any(request, DescribeConfigsResponse, deadline).results
        try:
            check_code(result.error_code, f"the settings of group {group!r}", result.error_message)
        except AuthorizationFailed:
            return {}
        return {config.name: config.value for config in result.configs}

    def _set(self, group: str, name: str, value: str) -> EmbedlogError | None:
        """Change a setting. Returns the broker's refusal."""
        config = AlterableConfig(name=name, config_operation=_SET, value=value)
        resource = AlterConfigsResource(resource_type=_GROUP, resource_name=group, configs=[config])

        def attempt(deadline: float) -> EmbedlogError | None:
            request = IncrementalAlterConfigsRequest(resources=[resource])
            [result] = self._brokers.ask_any(request, IncrementalAlterConfigsResponse, deadline).responses
            try:
                check_code(
                    result.error_code,
                    f"group {group!r}: {name}={value}",
                    result.error_message,
                    {"group": group},
                )
            except EmbedlogError as error:
                return error
            return None

        return self._brokers.retried(attempt)

    def _set_lock(self, group: str, lock_ms: int, values: dict[str, str | None]) -> None:
        """Raises InvalidArgument if locks would run out before they are renewed."""
        lock = values.get(_LOCK)
        error = None if lock == str(lock_ms) else self._set(group, _LOCK, str(lock_ms))
        if error is None:
            return
        if isinstance(error, AuthorizationFailed) and lock is not None and int(lock) >= lock_ms:
            what = "queue group %r: jobs are locked for %s ms instead of lock_ms=%d (%s)"
            _logger.warning(what, group, lock, lock_ms, error)
            return
        raise InvalidArgument(
            f"lock_ms={lock_ms:,}: the brokers do not lock jobs of group {group!r} for that long"
            f"{'' if lock is None else f', but for {int(lock):,} ms'}: {error}"
        )

    def _deliveries(self, group: str, most: int, values: dict[str, str | None]) -> int:
        """The brokers' limit of deliveries, raised if it can be. Raises InvalidArgument if it is too low."""
        limit = int(values.get(_LIMIT) or _KAFKAS_LIMIT)
        if limit > most:
            return limit
        refusal: EmbedlogError | None = None
        for wanted in dict.fromkeys((most + _SPARE_DELIVERIES, _KAFKAS_LONGEST_LIMIT, most + 1, most)):
            if wanted < most or wanted == limit:
                continue
            refused = self._set(group, _LIMIT, str(wanted))
            if refused is None:
                limit = wanted
                break
            refusal = refused
        if limit < most:
            raise InvalidArgument(
                f"max_deliveries={most}: the brokers deliver a job of group {group!r} at most {limit} times, "
                f"then it is gone without a dead letter ({refusal})"
            )
        if limit == most:
            what = "queue group %r: a job whose worker dies at delivery %d is gone without a dead letter (%s)"
            _logger.warning(what, group, limit, refusal)
        return limit


_UNSUPPORTED: Final = ErrorCode.UNSUPPORTED_VERSION
_OF_NOBODY: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND, _UNSUPPORTED}
)
