"""What the device knows of each row beside its state: its tokens, and how to choose the next."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Limits
from ..ops.sampling.reference import SamplingRows
from ..plan import RowStart


class RowTables:
    """tokens  [rows + 1, positions]: prompt, then what was sampled, written where it was sampled"""

    def __init__(self, limits: Limits, device: torch.device) -> None:
        rows = limits.max_num_seqs + 1
        self.tokens = torch.zeros(
            rows, limits.max_model_len + limits.max_window + 1, dtype=torch.int64, device=device
        )
        self._temperature = torch.zeros(rows, device=device)
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._top_p = torch.ones(rows, device=device)
        self._min_p = torch.zeros(rows, device=device)
        self._seed = torch.zeros(rows, dtype=torch.int64, device=device)

    def start(self, starts: tuple[RowStart, ...]) -> None:
        for start in starts:
            known = torch.tensor(start.tokens, dtype=torch.int64, device=self.tokens.device)
            self.tokens[start.row, : len(known)] = known
            self._temperature[start.row] = start.params.temperature
            self._top_k[start.row] = start.params.top_k
            self._top_p[start.row] = start.params.top_p
            self._min_p[start.row] = start.params.min_p
            self._seed[start.row] = start.seed

    def sampling(self, rows: Tensor, position: Tensor) -> SamplingRows:
        return SamplingRows(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seed=self._seed[rows],
            position=position,
        )
