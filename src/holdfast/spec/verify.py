"""Which drafts are accepted: those that are what was chosen in their place.

Every position of a window is sampled as if nothing had been guessed, with noise that depends on the row's seed and
the position alone. So a request gets the tokens that it would have got anyway, and no drafter can change them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def count_accepted(*, drafts: Tensor, chosen: Tensor, count: Tensor) -> Tensor:
    """[N]: how many of each lane's drafts are certain now; the bonus is what was chosen after so many.

    drafts  [N, D]
    chosen  [N, D + 1]: in the place of each draft, and after the last
    count   [N]: so many of the drafts were meant and planned; no other is accepted
    """
    place = torch.arange(drafts.shape[1], device=drafts.device)
    agree = (drafts == chosen[:, :-1]) & (place < count[:, None])
    return agree.long().cumprod(1).sum(1)
