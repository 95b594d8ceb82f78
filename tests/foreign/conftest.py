"""The broker that the clients here talk to."""

from broker_process import bootstrap

__all__ = ["bootstrap"]
