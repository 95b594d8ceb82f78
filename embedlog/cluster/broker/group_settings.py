"""The settings of groups (Kafka's config resource GROUP): their own ones over the broker's.

A client may set them for a group that there is not yet. They are in the file group-settings.json at the root
of the log's directory, and hold from the next heartbeat or fetch of a member on.

    {"version": 1, "groups": {"billing": {"share_auto_offset_reset": "earliest"}}}

Source: Kafka's GroupConfig (KIP-848, KIP-932).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from ...clients.first_offsets import duration_ms
from ...config import MAX_INT16, MAX_INT32, Settings, dotted
from ...errors import CorruptCheckpoint, EmbedlogError, InvalidSetting, StorageError
from ...files.names import GROUP_SETTINGS_FILE
from ...groups.share_group import ShareSettings
from ...model import ShareGroupOptions
from ...partition import Partition
from ...runtime.locks import Lock
from ...store.store import Store
from ...wire.error_codes import ErrorCode
from ..settings.broker_settings import BrokerSettings
from ..settings.topic_configs import INT, FixedConfig
from .api_errors import ApiError

_VERSION: Final = 1
FIXED: Final = {
    **{
        name: FixedConfig(INT, value, lambda text: True, "groups get their assignments at once")
        for name, value in (("consumer.assignment.interval.ms", "0"), ("share.assignment.interval.ms", "0"))
    },
    **{
        name: FixedConfig(INT, value, lambda text: True, "there are no streams groups")
        for name, value in (
            ("streams.assignment.interval.ms", "0"),
            ("streams.heartbeat.interval.ms", "5000"),
            ("streams.initial.rebalance.delay.ms", "3000"),
            ("streams.num.standby.replicas", "0"),
            ("streams.session.timeout.ms", "45000"),
        )
    },
}
"""Settings of groups in Kafka that have no effect here; accepted, not stored."""
_READ_COMMITTED: Final = "read_committed"
_BROKER_NAMES: Final = {
    "consumer_heartbeat_interval_ms": "group_consumer_heartbeat_interval_ms",
    "consumer_session_timeout_ms": "group_consumer_session_timeout_ms",
    "share_delivery_count_limit": "group_share_delivery_count_limit",
    "share_heartbeat_interval_ms": "group_share_heartbeat_interval_ms",
    "share_partition_max_record_locks": "group_share_partition_max_record_locks",
    "share_record_lock_duration_ms": "group_share_record_lock_duration_ms",
    "share_session_timeout_ms": "group_share_session_timeout_ms",
}


@dataclass(frozen=True)
class GroupSettings(Settings):
    """The settings that a group may have. Times are in milliseconds."""

    rules: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "consumer_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "consumer_session_timeout_ms": {"low": 1, "high": MAX_INT32},
        "share_delivery_count_limit": {"low": 1, "high": MAX_INT16},
        "share_heartbeat_interval_ms": {"low": 1, "high": MAX_INT32},
        "share_isolation_level": {"allowed": ("read_uncommitted", _READ_COMMITTED)},
        "share_partition_max_record_locks": {"low": 1, "high": 1_000_000},
        "share_record_lock_duration_ms": {"low": 1, "high": MAX_INT32},
        "share_session_timeout_ms": {"low": 1, "high": MAX_INT32},
    }

    consumer_heartbeat_interval_ms: int = 5_000
    consumer_session_timeout_ms: int = 45_000
    share_auto_offset_reset: str = "latest"
    share_delivery_count_limit: int = 5
    share_heartbeat_interval_ms: int = 5_000
    share_isolation_level: str = "read_uncommitted"
    share_partition_max_record_locks: int = 2_000
    share_record_lock_duration_ms: int = 30_000
    share_renew_acknowledge_enable: bool = True
    share_session_timeout_ms: int = 45_000

    @classmethod
    def parse(cls, texts: Mapping[str, Any]) -> dict[str, Any]:
        """Parse as `Settings.parse`; share.auto.offset.reset is checked, too."""
        parsed = super().parse(texts)
        if "share_auto_offset_reset" in parsed:
            reset = parsed["share_auto_offset_reset"] = parsed["share_auto_offset_reset"].strip()
            if reset not in ("latest", "earliest") and duration_ms(reset) is None:
                raise InvalidSetting(
                    "share.auto.offset.reset must be latest, earliest, or by_duration: and an ISO 8601 "
                    "duration such as PT1H30M"
                )
        return parsed

    def shares(self, clock_ms: Callable[[], int]) -> ShareSettings:
        """What they say of a share group's deliveries. clock_ms: the log's clock."""
        return ShareSettings(
            ShareGroupOptions(
                lock_ms=self.share_record_lock_duration_ms, max_deliveries=self.share_delivery_count_limit
            ),
            partial(_begins_at, self.share_auto_offset_reset, clock_ms),
            self.share_isolation_level == _READ_COMMITTED,
            self.share_partition_max_record_locks,
            self.share_renew_acknowledge_enable,
        )


class GroupConfigs:
    """The settings of all groups. Thread-safe.

    broker: gives the broker's settings, which hold where a group has none of its own.
    """

    def __init__(self, store: Store, broker: Callable[[], BrokerSettings]) -> None:
        self._store = store
        self._broker = broker
        self._lock = Lock()
        self._own: dict[str, dict[str, Any]] | None = None  # replaced as a whole, once it is read

    def names(self) -> list[str]:
        """The groups that have settings of their own, sorted. Raises CorruptCheckpoint, StorageError."""
        return sorted(self._load())

    def own(self, group: str) -> dict[str, Any]:
        """What was set for a group. Raises as `names`."""
        return dict(self._load().get(group, {}))

    def of_broker(self) -> GroupSettings:
        """What holds for groups without settings of their own."""
        settings = self._broker()
        return GroupSettings().replaced(
            **{name: getattr(settings, broker_name) for name, broker_name in _BROKER_NAMES.items()}
        )

    def of(self, group: str) -> GroupSettings:
        """What holds for a group. Raises as `names`."""
        own_settings = self._load().get(group)
        return self.of_broker().replaced(**own_settings) if own_settings else self.of_broker()

    def shares_of(self, group: str) -> ShareSettings:
        """What holds for the deliveries of a share group. Raises as `names`."""
        return self.of(group).shares(self._store.clock_ms)

    def check(self, own_settings: Mapping[str, Any]) -> None:
        """Raises InvalidSetting if one is out of the broker's bounds for groups, or if these, over the
        broker's, would expire members between two heartbeats."""
        for name in own_settings.keys() & _BROKER_NAMES.keys():
            _check_bounds(self._broker(), name, own_settings[name])
        settings = self.of_broker().replaced(**own_settings)
        for kind, session_ms, interval_ms in (
            ("consumer", settings.consumer_session_timeout_ms, settings.consumer_heartbeat_interval_ms),
            ("share", settings.share_session_timeout_ms, settings.share_heartbeat_interval_ms),
        ):
            if any(name.startswith(kind) for name in own_settings) and session_ms <= interval_ms:
                raise InvalidSetting(
                    f"{kind}.session.timeout.ms ({session_ms:,}) must exceed {kind}.heartbeat.interval.ms "
                    f"({interval_ms:,})"
                )

    def alter(self, group: str, own_settings: Mapping[str, Any], max_groups: int) -> None:
        """Replace what is set for a group, durably. The values are those of `GroupSettings.parse`.

        Raises ApiError if there would be too many groups with settings; as `names`.
        """
        with self._lock:
            changed = {**self._read(), group: dict(own_settings)}
            if not own_settings:
                del changed[group]
            elif len(changed) > max_groups:
                raise ApiError(
                    ErrorCode.POLICY_VIOLATION, f"{max_groups:,} groups have settings already (max.groups)"
                )
            path = self._store.catalog.file(GROUP_SETTINGS_FILE)
            text = json.dumps({"version": _VERSION, "groups": changed}, indent=1)
            try:
                self._store.fs.write_file(path, text.encode())
            except OSError as error:
                raise StorageError(f"{path} cannot be written: {error.strerror}", path=path) from error
            self._own = changed

    def _load(self) -> dict[str, dict[str, Any]]:
        configs = self._own
        if configs is None:
            with self._lock:
                configs = self._own = self._read()
        return configs

    def _read(self) -> dict[str, dict[str, Any]]:
        if self._own is not None:
            return self._own
        path = self._store.catalog.file(GROUP_SETTINGS_FILE)
        try:
            content = self._store.catalog.read_json(GROUP_SETTINGS_FILE)
        except FileNotFoundError:
            return {}
        try:
            if content["version"] != _VERSION:
                raise CorruptCheckpoint("an unknown version of group-settings.json", path=path)
            return {
                str(group): GroupSettings.parse(own_settings)
                for group, own_settings in content["groups"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptCheckpoint("not a valid group-settings.json", path=path) from error
        except CorruptCheckpoint:
            raise
        except EmbedlogError as error:
            raise CorruptCheckpoint(f"not a valid group-settings.json: {error}", path=path) from error


def check_broker(settings: BrokerSettings) -> None:
    """Raises InvalidSetting if the broker's own settings for groups are out of its bounds."""
    for name, broker_name in _BROKER_NAMES.items():
        _check_bounds(settings, name, getattr(settings, broker_name))


def _check_bounds(settings: BrokerSettings, name: str, value: int) -> None:
    """The bounds are group.consumer.min.session.timeout.ms and the like."""
    kind, _, suffix = name.partition("_")
    bounds = f"group_{kind}_min_{suffix}", f"group_{kind}_max_{suffix}"
    low, high = (getattr(settings, bound) for bound in bounds)
    if not low <= value <= high:
        raise InvalidSetting(
            f"{dotted(name)} must be {low:,} to {high:,} ({dotted(bounds[0])} and max), not {value:,}"
        )


def _begins_at(reset: str, clock_ms: Callable[[], int], partition: Partition) -> int:
    """The first offset of a partition for a group that is new to it."""
    offsets = partition.offsets()
    if reset == "earliest":
        return offsets.log_start_offset
    ago_ms = duration_ms(reset)
    if ago_ms is None:
        return offsets.log_end_offset
    record = partition.offset_for_time(max(clock_ms() - ago_ms, 0))
    return offsets.log_end_offset if record is None else record.offset
