"""What the device knows of each row beside its state: its tokens, and how to choose the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ..config import Limits
from ..ids import Row
from ..ops.sampling.reference import Adjustments, SamplingRows
from ..ops.transfer import to_device
from ..params import MAX_LISTED
from ..plan import RowStart

NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Parameters that are one number for each row, by the names that SamplingParams gives them."""

ALWAYS = torch.iinfo(torch.int64).max


class RowTables:
    """Each of them is [rows + 1, ...], and row 0 is padding.

    tokens           [positions]  prompt, then what was sampled, written where it was sampled, then drafts
    drafts           []           how many
    bias, ids, until [entries]    as in Adjustments: a row's logit_bias, then what it may not say yet
    """

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows, positions = limits.max_num_seqs + 1, limits.max_model_len + limits.max_window + 1
        self.tokens = torch.zeros(rows, positions, dtype=torch.int64, device=device)
        self.drafts = torch.zeros(rows, dtype=torch.int64, device=device)
        self._numbers = {name: torch.zeros(rows, device=device) for name in NUMBERS}
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._seed = torch.zeros(rows, dtype=torch.int64, device=device)
        self._prompt_len = torch.zeros(rows, dtype=torch.int64, device=device)
        self._bias = torch.zeros(rows, 2 * MAX_LISTED, device=device)
        self._bias_ids = torch.zeros(rows, 2 * MAX_LISTED, dtype=torch.int64, device=device)
        self._bias_until = torch.zeros(rows, 2 * MAX_LISTED, dtype=torch.int64, device=device)
        self._vocab_size = limits.vocab_size
        self._entries: dict[Row, int] = {}
        """How many of its entries a row uses; the others are padding."""

    def start(self, starts: tuple[RowStart, ...]) -> None:
        if not starts:
            return
        device = self.tokens.device
        rows = to_device([start.row for start in starts], device)
        numbers = [[getattr(start.params, name) for name in NUMBERS] for start in starts]
        for table, column in zip(
            self._numbers.values(), to_device(numbers, device, torch.float32).unbind(1), strict=True
        ):
            table[rows] = column
        whole = [[start.params.top_k, start.seed, start.prompt_len, 0] for start in starts]
        tables = (self._top_k, self._seed, self._prompt_len, self.drafts)
        for table, column in zip(tables, to_device(whole, device).unbind(1), strict=True):
            table[rows] = column
        lengths = [len(start.tokens) for start in starts]
        known = to_device([token for start in starts for token in start.tokens], device)
        owner = to_device(np.repeat([start.row for start in starts], lengths), device)
        place = to_device(np.concatenate([np.arange(n) for n in lengths]), device)
        self.tokens[owner, place] = known
        for start in starts:
            self._write_bias(start)

    def sampling(self, rows: Tensor, position: Tensor, *, draws: bool, truncates: bool) -> SamplingRows:
        return SamplingRows(
            temperature=self._numbers["temperature"][rows],
            top_k=self._top_k[rows],
            top_p=self._numbers["top_p"][rows],
            min_p=self._numbers["min_p"][rows],
            seed=self._seed[rows],
            position=position,
            draws=draws,
            truncates=truncates,
        )

    def adjustments(self, rows: Tensor, position: Tensor, *, entries: int, history: int) -> Adjustments:
        """`entries` and `history`: how much of the tables any of these rows uses."""
        return Adjustments(
            bias_ids=self._bias_ids[rows, :entries],
            bias=self._bias[rows, :entries],
            bias_until=self._bias_until[rows, :entries],
            tokens=self.tokens[rows, :history],
            prompt_len=self._prompt_len[rows],
            position=position,
            repetition_penalty=self._numbers["repetition_penalty"][rows],
            presence_penalty=self._numbers["presence_penalty"][rows],
            frequency_penalty=self._numbers["frequency_penalty"][rows],
        )

    def penalises(self, rows: Tensor) -> Tensor:
        """Which of them weigh a token by those before it?"""
        numbers = {name: self._numbers[name][rows] for name in ("presence_penalty", "frequency_penalty")}
        weighed = [number != 0.0 for number in numbers.values()]
        return torch.stack((*weighed, self._numbers["repetition_penalty"][rows] != 1.0)).any(0)

    def num_entries(self, row: Row) -> int:
        return self._entries.get(row, 0)

    def _write_bias(self, start: RowStart) -> None:
        if self._entries.pop(start.row, 0):
            self._bias[start.row], self._bias_ids[start.row] = 0.0, 0
        # a model's config may name end-of-text tokens that it does not have
        if entries := [entry for entry in _entries(start) if entry[0] < self._vocab_size]:
            ids, bias, until = zip(*entries, strict=True)
            used = slice(0, len(entries))
            device = self._bias.device
            self._bias_ids[start.row, used] = to_device(ids, device)
            self._bias[start.row, used] = to_device(bias, device, torch.float32)
            self._bias_until[start.row, used] = to_device(until, device)
            self._entries[start.row] = len(entries)


def _entries(start: RowStart) -> Iterator[tuple[int, float, int]]:
    """(token, bias, the position from which it no longer acts)"""
    for token, bias in start.params.logit_bias.items():
        yield token, bias, ALWAYS
    if start.params.min_tokens:
        for token in start.stop_ids:
            yield token, -torch.inf, start.prompt_len + start.params.min_tokens
