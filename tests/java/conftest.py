"""The broker that the clients here talk to."""

from served import bootstrap

__all__ = ["bootstrap"]
