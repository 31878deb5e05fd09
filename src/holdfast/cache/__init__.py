"""Who owns what: rows, slots and pages, and which of them hold a prefix worth keeping."""

from .audit import Audit, Census
from .chain import Label
from .free_list import OwnershipError
from .manager import Admission, CacheManager
from .policy import Policy
from .radix import Match
from .stats import CacheCounters, CacheStats

__all__ = [
    "Admission",
    "Audit",
    "CacheCounters",
    "CacheManager",
    "CacheStats",
    "Census",
    "Label",
    "Match",
    "OwnershipError",
    "Policy",
]
