"""What the executor keeps beside the pools."""

from __future__ import annotations

from ..config import Limits
from ..memory.sizing import META, held_bytes
from .inputs import Inputs
from .tables import RowTables


def table_bytes(limits: Limits) -> int:
    """Rows' tables and steps' inputs, with the inputs' copies on the host; laid out, but not allocated."""
    return held_bytes(RowTables(limits, META), Inputs(limits, META))
