"""Client quotas of brokers, by DescribeClientQuotas and AlterClientQuotas, as of a directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...security.quota_rules import Entity, QuotasByEntity
from ...wire.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ...wire.apis.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from .brokers import Brokers, check_code

_WHAT: Final = "quotas"


class RemoteQuotas:
    """Methods raise BrokerError, BrokerUnavailable. Thread-safe."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    def read(self) -> QuotasByEntity:
        """All quotas."""

        def attempt(deadline: float) -> QuotasByEntity:
            response = self._brokers.ask_any(
                DescribeClientQuotasRequest(), DescribeClientQuotasResponse, deadline
            )
            check_code(response.error_code, _WHAT, response.error_message)
            return {
                tuple((component.entity_type, component.entity_name) for component in entry.entity): {
                    quota.key: quota.value for quota in entry.values
                }
                for entry in response.entries or ()
            }

        return self._brokers.retried(attempt)

    def alter(self, of: Entity, changes: Mapping[str, float | None]) -> None:
        """Set an entity's quotas; None removes one."""
        entry = RequestEntryData(
            entity=[RequestEntityData(entity_type=kind, entity_name=name) for kind, name in of],
            ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
        )

        def attempt(deadline: float) -> None:
            response = self._brokers.ask_any(
                AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse, deadline
            )
            for result in response.entries:
                check_code(result.error_code, _WHAT, result.error_message)

        self._brokers.retried(attempt)
