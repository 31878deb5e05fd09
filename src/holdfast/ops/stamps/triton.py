"""The checks' kernels, launched."""

from __future__ import annotations

from dataclasses import dataclass

import triton
from torch import Tensor

from ..step import StateStep
from . import kernels

BLOCK, BLOCKS = 1024, 4
"""Positions that a program compares at a time, and how often at the most."""


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


def check_cursors(
    found: Tensor, ledger: Ledger, step: StateStep, tokens: Tensor, tell: Tensor, chosen: Tensor, missing: int
) -> None:
    """The first of a step. missing: the number of a state that no operation used, or -1"""
    found[:1].zero_()
    kernels.cursors[(len(step.rows),)](
        found, missing, ledger.meant, ledger.meant.stride(0),
        step.rows, step.counts, step.position, tokens, tell, chosen,
        ledger.stand, ledger.chain, ledger.chain.stride(0), ledger.keys, len(ledger.keys), num_warps=1,
    )  # fmt: skip


def check_recurrent(
    found: Tensor,
    ledger: Ledger,
    step: StateStep,
    used: Tensor,
    states: Tensor,
    ring: Tensor,
    slots: Tensor,
    reach: int,
) -> None:
    """ring [its states, rows * capacity], slots [all states, slots]: stamps; states [n, 2]: which of both"""
    capacity = ring.shape[1] // len(ledger.stand)
    kernels.recurrent[(len(step.rows), len(states))](
        found, states, ring, ring.stride(0), slots, slots.stride(0),
        ledger.meant, step.rows, step.counts, step.position, step.base, step.read_slot, step.end_base,
        step.write_slot, used, ledger.stand, ledger.tickets, ledger.slot_owner, ledger.granted,
        ledger.granted.stride(0), ledger.chain, ledger.chain.stride(0),
        CAP=capacity, BC=triton.next_power_of_2(capacity), REACH=reach, num_warps=1,
    )  # fmt: skip


def check_paged(
    found: Tensor,
    ledger: Ledger,
    step: StateStep,
    pages: Tensor,
    states: Tensor,
    stamps: Tensor,
    first_state: int,
    page_size: int,
) -> None:
    """pages: the table; stamps [layers, pages * page_size]; first_state: the number that a finding has for layer 0"""
    blocks = triton.cdiv(pages.shape[1] * page_size, BLOCK)
    parts = triton.cdiv(blocks, BLOCKS)
    kernels.paged[(len(step.rows), len(states), parts)](
        found, states, first_state, stamps, stamps.stride(0), pages, pages.stride(0),
        ledger.meant, step.rows, step.counts, step.position,
        ledger.stand, ledger.tickets, ledger.page_owner, ledger.chain, ledger.chain.stride(0),
        PAGE=page_size, BLOCK=BLOCK, BLOCKS=min(blocks, BLOCKS), num_warps=4,
    )  # fmt: skip


def publish(ledger: Ledger, step: StateStep, used: Tensor, nobody: int) -> None:
    """The last of a step."""
    kernels.published[(len(step.rows),)](
        step.rows, used, ledger.granted, ledger.slot_owner, NOBODY=nobody, num_warps=1
    )
