"""What stands before the gated delta rule in a delta net: convolution, activation, norms and gates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DeltaInputs:
    """Projections of the tokens.

    qkv   [tokens, 2 * H * K + HV * V]: all queries, all keys, all values
    b, a  [tokens, HV]: how strongly a token writes, and how fast its head forgets
    """

    qkv: Tensor
    b: Tensor
    a: Tensor


@dataclass(frozen=True)
class DeltaWeights:
    """conv [channels of qkv, width], a_log and dt_bias [HV] in float32; strengths are in 0 .. beta_scale"""

    conv: Tensor
    a_log: Tensor
    dt_bias: Tensor
    beta_scale: float
