"""Who owns what: rows, slots and pages, and which of them hold a prefix worth keeping."""

from .audit import Audit, Census
from .free_list import OwnershipError
from .manager import Admission, CacheManager
from .prefix import Label, Match

__all__ = ["Admission", "Audit", "CacheManager", "Census", "Label", "Match", "OwnershipError"]
