"""What runs next."""

from .scheduler import Scheduler

__all__ = ["Scheduler"]
