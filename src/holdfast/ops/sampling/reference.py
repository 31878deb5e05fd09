"""Choosing tokens, in plain torch.

From a row's logits to its token, in this order:

    1  logit_bias is added                                         \\
    2  repetition_penalty, over the prompt and the answer so far    |  adjust(): greedy rows too
    3  frequency_penalty and presence_penalty, over the answer      |
    4  before min_tokens, tokens that would end the answer: -inf   /
    5  tokens that the form of the answer does not permit: -inf       permit(): greedy rows too
       temperature 0: the largest logit is chosen, and the rest of this does not happen
    6  division by temperature                                     \\
    7  top_k      the k largest                                     |
    8  top_p      of those, the smallest set that has mass p        |  sample()
    9  min_p      of those, at least min_p times the largest        |
    10 a draw from what is left                                    /

Log-probabilities are the model's own: of the logits before step 1.

A row's choice depends on its logits, parameters, seed and position, and on nothing else. Both functions take
one row of logits for each choice and keep nothing, so the tokens of a window may stand in rows of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Adjustments:
    """What changes the logits of S rows.

    bias_ids    [S, W]  token ids, several entries may name one token; token 0 with bias 0 is padding
    bias        [S, W]  added to the logit; -inf forbids the token
    bias_until  [S, W]  an entry acts at positions before this one
    tokens      [S, L]  prompt, then answer; at `position` and after it they are not read
    prompt_len  [S]
    position    [S]     where the token to be chosen will stand
    repetition_penalty, presence_penalty, frequency_penalty  [S], where 1, 0 and 0 are off
    """

    bias_ids: Tensor
    bias: Tensor
    bias_until: Tensor
    tokens: Tensor
    prompt_len: Tensor
    position: Tensor
    repetition_penalty: Tensor
    presence_penalty: Tensor
    frequency_penalty: Tensor


@dataclass(frozen=True)
class SamplingRows:
    """One value per row: temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    draws, truncates  False where the caller knows that no row needs it: neither is found out from a tensor
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    draws: bool = True
    truncates: bool = True

    def row(self, index: int) -> SamplingRows:
        at = slice(index, index + 1)
        return SamplingRows(
            temperature=self.temperature[at],
            top_k=self.top_k[at],
            top_p=self.top_p[at],
            min_p=self.min_p[at],
            seed=self.seed[at],
            position=self.position[at],
            draws=self.draws,
            truncates=self.truncates,
        )


def adjust(logits: Tensor, rows: Adjustments) -> Tensor:
    """[S, vocab] -> [S, vocab] in float32. Nothing after it changes a -inf, so step 4 comes with step 1."""
    acts = rows.position[:, None] < rows.bias_until
    biased = logits.float().scatter_add(-1, rows.bias_ids, rows.bias.masked_fill(~acts, 0.0))
    return _penalise(biased, rows)


def _penalise(logits: Tensor, rows: Adjustments) -> Tensor:
    place = torch.arange(rows.tokens.shape[-1], device=logits.device)
    known = place < rows.position[:, None]
    seen = _count(rows.tokens, known, logits.shape[-1]) > 0
    said = _count(rows.tokens, known & (place >= rows.prompt_len[:, None]), logits.shape[-1])
    repeated = rows.repetition_penalty[:, None]
    logits = torch.where(seen, torch.where(logits > 0, logits / repeated, logits * repeated), logits)
    logits = logits - rows.frequency_penalty[:, None] * said
    return logits - rows.presence_penalty[:, None] * (said > 0)


def _count(tokens: Tensor, counted: Tensor, vocab: int) -> Tensor:
    """How often each token is among those counted. In integers: their sum does not depend on an order."""
    counts = torch.zeros(len(tokens), vocab, dtype=torch.int32, device=tokens.device)
    return counts.scatter_add(-1, tokens, counted.int())


def permit(logits: Tensor, places: Tensor, permitted: Tensor) -> Tensor:
    """[S, vocab], in which at `places` [P] all tokens are -inf but those whose bit is set.

    permitted  [P, bytes], the lowest bit of a byte first, for the whole vocabulary at least
    """
    bit = torch.arange(8, dtype=torch.uint8, device=logits.device)
    allowed = ((permitted[:, :, None] >> bit) & 1).flatten(1)[:, : logits.shape[-1]].bool()
    return logits.index_copy(0, places, logits[places].masked_fill(~allowed, -torch.inf))


def sample(logits: Tensor, rows: SamplingRows) -> Tensor:
    """[S, vocab] -> [S] token ids: argmax, or a draw by Gumbel noise keyed by (seed, position, token)."""
    greedy = most_likely(logits)
    if not rows.draws:
        return greedy
    drawn = rows.temperature > 0
    scaled = logits.float() / torch.where(drawn, rows.temperature, 1.0)[:, None]
    kept = truncate(scaled, rows.top_k, rows.top_p, rows.min_p) if rows.truncates else scaled
    noise = gumbel(rows.seed, rows.position, logits.shape[-1])
    return torch.where(drawn, most_likely(kept + noise), greedy)


def most_likely(logits: Tensor) -> Tensor:
    """[S, vocab] -> [S]: the first of the largest."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.float().numpy().argmax(-1))  # in a tenth of the time that torch takes
    return logits.argmax(-1)


def truncate(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """-inf for tokens outside the k most likely, the smallest set of mass p, or below min_p of the best."""
    vocab = logits.shape[-1]
    ordered, order = descending(logits)
    rank = torch.arange(vocab, device=logits.device)
    in_k = rank < torch.where(top_k > 0, top_k, vocab)[:, None]
    probability = torch.where(in_k, ordered, -torch.inf).softmax(-1)
    mass_before = probability.cumsum(-1) - probability
    in_p = (mass_before < top_p[:, None]) | (top_p >= 1.0)[:, None]
    likely = probability >= min_p[:, None] * probability[:, :1]
    keep = (in_k & in_p & likely) | (rank == 0)
    return torch.where(torch.zeros_like(keep).scatter(-1, order, keep), logits, -torch.inf)


def descending(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[S, vocab] -> logits from the largest to the smallest, the first of equal ones first; and which they are."""
    if logits.device.type != "cpu":
        return logits.sort(dim=-1, descending=True, stable=True)
    # numpy sorts integers many times faster than torch sorts numbers: they are a logit's rank, then its place
    bits = logits.add(0.0).view(torch.int32)  # 0 and -0 are equal
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).bitwise_not_().long()
    keys = rank.bitwise_left_shift_(32).add_(torch.arange(logits.shape[-1]))
    keys.numpy().sort(-1)
    order = keys.bitwise_and_(0xFFFFFFFF)
    return logits.gather(-1, order), order


def gumbel(seed: Tensor, position: Tensor, vocab: int) -> Tensor:
    """[S, vocab] of Gumbel noise: a counter-based draw, so that no neighbour and no order can change it."""
    token = torch.arange(vocab, device=seed.device)
    key = _mix(_mix(seed) ^ position)
    bits = _mix(key[:, None] ^ _mix(token))
    # never 0 and never 1, so the noise is finite
    uniform = _shift(bits, 12).double().add_(0.5).mul_(2.0**-52)
    return uniform.log_().neg_().log_().neg_().float()


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, on wrapping int64."""
    x = x + -7046029254386353131
    x ^= _shift(x, 30)
    x *= -4658895280553007687
    x ^= _shift(x, 27)
    x *= -7723592293110705685
    x ^= _shift(x, 31)
    return x


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right: int64's own keeps the sign."""
    shifted = x >> bits
    shifted &= (1 << (64 - bits)) - 1
    return shifted
