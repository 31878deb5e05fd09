"""What the checks' kernels go by."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Ledger:
    """What the plan means, on the device.

    meant       [4, lanes]      row, least and most position, tokens of each
    granted     [2, rows]       slot and line that a row was promised last
    stand       [rows]          tokens absorbed
    tickets     [rows]          of tenants;  slot_owner, page_owner  the same, of what belongs to them
    chain       [rows, places]  stamps of the row's texts;  keys  by position
    """

    meant: Tensor
    granted: Tensor
    stand: Tensor
    tickets: Tensor
    slot_owner: Tensor
    page_owner: Tensor
    chain: Tensor
    keys: Tensor


@dataclass(frozen=True)
class Meant:
    """Of each lane: its row, and how many tokens it takes."""

    rows: Tensor
    tokens: Tensor
