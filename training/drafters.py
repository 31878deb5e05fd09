"""Trains drafters for a finished model on its own answers: its MTP head, an EAGLE-3 head, a DFlash drafter.

DIR/config.json, model.safetensors   the target, its MTP head trained further for chains
DIR/eagle3/, DIR/dflash/             config.json, model.safetensors
DIR/drafters.jsonl                   losses, and greedy accept lengths on held-out questions
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import hub
from .chains import Eagle3, MTPChain, draft, eagle3_config
from .dflash import DFlash, dflash_config
from .models import Qwen35
from .muon import Optimizer, Rates
from .rows import Documents, Rows, batch
from .sample import answers
from .train import DEVICE, one_later, rate_at

DRAFTERS = ("mtp", "eagle3", "dflash")
MASK = 3
BLOCK, ANCHORS = 8, 32
HELDOUT = 256
"""Questions by which accept lengths are counted."""
AT_ONCE = 256
"""Rows that the target reads together."""
KEPT = torch.bfloat16 if DEVICE == "cuda" else torch.float32
TEXTS = 512
"""Longer rows of what the target was trained on."""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m training drafters", description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the finished model")
    parser.add_argument("--data", type=Path, required=True, help="what `prepare` wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--what", nargs="+", choices=DRAFTERS, default=list(DRAFTERS))
    parser.add_argument("--minutes", type=float, default=0.6, help="of training for each")
    parser.add_argument("--questions", type=int, default=4096, help="answered at once, greedy and at 0.8")
    parser.add_argument("--rounds", type=int, default=3, help="of answers")
    parser.add_argument("--answer-length", type=int, default=384, help="tokens, the question's included")
    parser.add_argument("--batch", type=int, default=64, help="rows in a step")
    parser.add_argument("--depth", type=int, default=4, help="steps of a chain")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="go on from what an earlier run wrote (an MTP head goes on from the target's)",
    )
    parser.add_argument("--report-every", type=float, default=10.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for name in {"eagle3", "dflash"} & set(options.what if options.resume else ()):
        if not (options.resume / name).is_dir():
            parser.error(f"--resume {options.resume}: there is no {name} in it")
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    Training(options).run()


class Read(NamedTuple):
    """Rows, and what the target makes of them: it does not change, so it is asked once."""

    rows: Tensor
    """[B, T + 1] as they are stored"""
    hidden: Tensor
    """[B, T, hidden]"""
    features: list[Tensor]
    """[B, T, hidden] of each layer that is tapped"""

    def some(self, which: Tensor) -> Read:
        return Read(self.rows[which], self.hidden[which], [it[which] for it in self.features])


class Training:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.log = options, list[str]()
        config = hub.read_config(options.target)
        self.target = Qwen35(config).to(DEVICE).eval()
        hub.load(self.target, options.target)
        self.target.requires_grad_(False)
        self.report({"options": {name: str(value) for name, value in vars(options).items()}})
        last = config["num_hidden_layers"] - 1
        self.layer_ids = [1, last // 2 + 1, last]
        answered = self.own_answers()
        self.drafted = self.frequent_tokens(answered, min(1024, config["vocab_size"]))
        self.own = self.read(answered)
        self.heldout = self.read(self.heldout_answers())
        longer = Rows(
            options.data, batch=min(TEXTS, 8 * options.batch), length=1024, tasks=0.5, seed=options.seed
        )
        self.texts = self.read(next(iter(longer)).to(DEVICE).long())

    def run(self) -> None:
        options, config = self.options, self.target.config
        if "mtp" in options.what:
            self.target.mtp.requires_grad_(True)
            self.train("mtp", MTPChain(self.target))
            self.target.requires_grad_(False)
            hub.save(options.out, config, self.target.state_dict())
        if "eagle3" in options.what:
            described = eagle3_config(
                config, layer_ids=self.layer_ids, vocabulary=len(self.drafted), inner=384
            )
            eagle = Eagle3(described, self.drafted)
            self.train("eagle3", self.begun("eagle3", eagle))
            hub.save(options.out / "eagle3", eagle.config, eagle.state_dict())
        if "dflash" in options.what:
            flash = DFlash(
                dflash_config(config, layer_ids=self.layer_ids, layers=2, inner=384, block=BLOCK, mask=MASK)
            )
            self.train("dflash", self.begun("dflash", flash))
            hub.save(options.out / "dflash", flash.config, flash.state_dict())
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "drafters.jsonl").write_text("\n".join(self.log) + "\n")

    def begun(self, name: str, drafter: nn.Module) -> nn.Module:
        if self.options.resume:
            hub.load(drafter, self.options.resume / name)
        return drafter.to(DEVICE)

    def own_answers(self) -> Tensor:
        """[rows, T] half of them greedy, half at temperature 0.8; the highest bit where nothing is learnt"""
        options = self.options
        prompts = Documents(options.data / "prompts")
        random = np.random.default_rng(options.seed)
        rows = []
        for number in range(options.rounds * 2):
            asked = [prompts[i] for i in random.choice(len(prompts), options.questions)]
            rows.append(self.answer(asked, 0.8 if number % 2 else 0.0))
        return torch.cat(rows)

    def heldout_answers(self) -> Tensor:
        prompts = Documents(self.options.data / "heldout-prompts")
        return self.answer(
            [prompts[i] for i in range(min(len(prompts), HELDOUT, 4 * self.options.batch))], 0.0
        )

    def answer(self, questions: list[np.ndarray], temperature: float) -> Tensor:
        start = time.perf_counter()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            rows = answers(
                self.target, questions, self.options.answer_length, temperature=temperature, end=hub.IM_END
            )
        length = torch.tensor([len(it) for it in questions], device=rows.device)[:, None]
        place = torch.arange(rows.shape[1], device=rows.device)
        ended = ((rows == hub.IM_END) & (place >= length)).long().cumsum(1) > 0
        behind = torch.roll(ended, 1, 1)
        behind[:, 0] = False
        answered = (place >= length) & ~behind
        self.report(
            {
                "answers": len(rows),
                "temperature": temperature,
                "tokens": int(answered.sum()),
                "ended": float(ended[:, -1].float().mean()),
                "seconds": time.perf_counter() - start,
            }
        )
        return torch.where(answered, rows, rows | (1 << 15))

    def frequent_tokens(self, rows: Tensor, count: int) -> Tensor:
        learned = rows[rows < 1 << 15]
        return (
            torch.bincount(learned.flatten(), minlength=self.target.config["vocab_size"])
            .topk(count)
            .indices.sort()
            .values.cpu()
        )

    def batches(self) -> Iterator[Read]:
        """Own answers, and among them longer rows of what the target was trained on."""
        number = 0
        while True:
            number += 1
            pool, count = (
                (self.texts, self.options.batch // 4) if number % 4 == 0 else (self.own, self.options.batch)
            )
            yield pool.some(torch.randint(len(pool.rows), (max(1, count),), device=DEVICE))

    def train(self, name: str, drafter: nn.Module) -> None:
        options = self.options
        optimizer = Optimizer(drafter.named_parameters(), Rates(decay=0.02))
        loss_of = self.block_loss if isinstance(drafter, DFlash) else self.chain_loss
        start, reported, steps, total = time.perf_counter(), 0.0, 0, 60 * options.minutes
        for read in self.batches():
            seconds = time.perf_counter() - start
            if seconds > total:
                break
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = loss_of(drafter, read)
            loss.backward()
            optimizer.step(rate_at(seconds / total))
            steps += 1
            if seconds - reported > options.report_every:
                reported = seconds
                self.report({"what": name, "step": steps, "seconds": seconds, "loss": float(loss.detach())})
        parameters = sum(it.numel() for it in drafter.parameters())
        self.report({"what": name, "steps": steps, "parameters": parameters, **self.accept_lengths(drafter)})

    def chain_loss(self, drafter: Any, read: Read) -> Tensor:
        found, wanted = batch(read.rows), self.logits(read.hidden)
        first = one_later(drafter.first(read.hidden, read.features))
        outputs = draft(drafter, self.target.embed(found.tokens), first, self.options.depth)
        vocabulary = drafter.vocabulary()
        losses = []
        for step, out in enumerate(outputs):
            learned = found.targets[:, step:] >= 0
            said = drafter.logits(out[:, : learned.shape[1]])
            losses.append(0.8**step * agreement(said, wanted[:, step:], learned, vocabulary))
        return torch.stack(losses).sum()

    def block_loss(self, drafter: Any, read: Read) -> Tensor:
        found = batch(read.rows)
        anchors = torch.randint(1, found.tokens.shape[1] - BLOCK + 1, (ANCHORS,), device=DEVICE)
        out = drafter(self.blocks(found.tokens, anchors), read.features, anchors)
        said = self.target.logits(out[:, :, 1:])
        masks = torch.arange(BLOCK - 1, device=DEVICE)
        where = anchors[:, None] + masks  # whose target each mask stands for
        learned = (found.targets[:, where] >= 0) * torch.exp(-masks / 4.0)
        return agreement(said, self.logits(read.hidden[:, where]), learned, None)

    def blocks(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        known = tokens[:, anchors, None]
        masks = torch.full((*known.shape[:2], BLOCK - 1), MASK, device=tokens.device)
        return self.target.embed(torch.cat((known, masks), -1))

    @torch.no_grad()
    def read(self, rows: Tensor) -> Read:
        found = []
        for some in rows.split(AT_ONCE):
            tokens = batch(some).tokens
            padded = nn.functional.pad(tokens, (0, -tokens.shape[1] % 64))
            with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
                hidden, features = self.target(padded, self.layer_ids)
            found.append([it[:, : tokens.shape[1]].to(KEPT) for it in (hidden, *features)])
        hidden, *features = (torch.cat(each) for each in zip(*found, strict=True))
        return Read(rows, hidden, features)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        return self.target.logits(hidden)

    @torch.no_grad()
    def accept_lengths(self, drafter: nn.Module) -> dict[str, float]:
        """Tokens a step gives on held-out questions, greedy: the drafts that hold, and the target's own."""
        right = []
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            for some in torch.arange(len(self.heldout.rows), device=DEVICE).split(self.options.batch):
                right.append(self._right(drafter, self.heldout.some(some)))
        holds = torch.cat(right).float().cumprod(-1)
        return {
            f"accept_length@{depth}": 1 + float(holds[:, :depth].sum(-1).mean())
            for depth in (1, 3, 5, 7)
            if depth <= holds.shape[-1]
        }

    def _right(self, drafter: Any, read: Read) -> Tensor:
        """[starts, 7]"""
        found, depth = batch(read.rows), BLOCK - 1
        starts = found.tokens.shape[1] - depth
        if isinstance(drafter, DFlash):
            anchors = torch.arange(1, starts, 5, device=DEVICE)
            out = drafter(self.blocks(found.tokens, anchors), read.features, anchors)[:, :, 1:]
            said = self.target.logits(out).argmax(-1)
        else:
            anchors = torch.arange(1, starts, device=DEVICE)
            first = one_later(drafter.first(read.hidden, read.features))
            vocabulary = drafter.vocabulary()
            each = [
                drafter.logits(out).argmax(-1)[:, anchors]
                for out in draft(drafter, self.target.embed(found.tokens), first, depth)
            ]
            said = torch.stack(each, -1)
            said = said if vocabulary is None else vocabulary[said]
        targets = found.targets[:, anchors[:, None] + torch.arange(depth, device=DEVICE)]
        inside = (targets >= 0).all(-1)
        return (said == targets)[inside]

    def report(self, values: dict[str, Any]) -> None:
        rounded = {name: round(it, 4) if isinstance(it, float) else it for name, it in values.items()}
        self.log.append(json.dumps(rounded))
        print(self.log[-1], flush=True)


def agreement(said: Tensor, wanted: Tensor, weight: Tensor, vocabulary: Tensor | None) -> Tensor:
    """Cross entropy with what the target finds likely, of the tokens that can be drafted.

    said, wanted  [.., vocabulary]; weight [..]
    """
    if vocabulary is not None:
        weight = weight * torch.isin(wanted.argmax(-1), vocabulary)
        wanted = wanted[..., vocabulary]
    each = -(wanted.float().softmax(-1) * said.float().log_softmax(-1)).sum(-1)
    weight = weight.float()
    return (each * weight).sum() / weight.sum().clamp(min=1.0)
