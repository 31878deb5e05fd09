"""Whole models: a plan with no rows and rows with no tokens pass through every layer, sampling and commit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.executor.runner import Runner
from holdfast.ids import Page, Row, Slot
from holdfast.layers.batch import Batch
from holdfast.models import registry
from holdfast.plan import Grant, PageMap, RowStart, RowWork, StepPlan, StepResult, Window
from holdfast.request import SamplingParams

from .models import CONFIGS, LIMITS, RECURRENT, build_runner
from .spy import Snapshot, bits, kv_tensors, same_bits, state_tensors

models = pytest.mark.parametrize("name", CONFIGS)
modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


class Client:
    """Sends plans to a runner, with pages for all and a slot for each row, and keeps the hidden states."""

    def __init__(self, name: str, *, exact: bool, params: SamplingParams | None = None) -> None:
        self.runner: Runner = build_runner(name, exact=exact)
        self.params = params or SamplingParams(logprobs=3)
        self.position: dict[int, int] = {}
        self.hidden = torch.empty(0)
        self._step = 0
        forward = self.runner.model.forward

        def recorded(batch: Batch) -> Tensor:
            self.hidden = forward(batch)
            return self.hidden

        self.runner.model.forward = recorded  # type: ignore[method-assign]

    def start(self, row: int, prompt: int) -> tuple[RowStart, tuple[PageMap, ...]]:
        self.position[row] = 0
        tokens = tuple((7 * row + 3 * i) % LIMITS.vocab_size for i in range(prompt))
        per_row = LIMITS.num_pages // LIMITS.max_num_seqs
        pages = tuple(PageMap(Row(row), n, Page(1 + per_row * (row - 1) + n)) for n in range(per_row))
        return RowStart(Row(row), 1, tokens, Slot(row), Slot(row), 0, self.params, seed=row), pages

    def launch(
        self, work: dict[int, int], *, starts: dict[int, int] | None = None, grants: tuple[Grant, ...] = ()
    ) -> StepResult:
        """`work` and `starts` are {row: tokens}; a lane that takes tokens also chooses the next."""
        started = [self.start(row, prompt) for row, prompt in (starts or {}).items()]
        at = self.position
        plan = StepPlan(
            step=self._step,
            starts=tuple(start for start, _ in started),
            pages=tuple(page for _, pages in started for page in pages),
            grants=grants,
            work=tuple(RowWork(Row(r), 1, n, Window(bonus=n > 0)) for r, n in work.items()),
            positions=tuple(at[r] for r in work),
            uncertain=(0,) * len(work),
        )
        self._step += 1
        result = self.runner.launch(plan).result()
        for row, count in work.items():
            self.position[row] += count
        return result

    def everything(self) -> dict[str, Tensor]:
        """Every tensor that lives longer than a step."""
        held = {f"kv.{name}": x for name, x in kv_tensors(self.runner.kv)}
        held |= {f"row.{name}": x for name, x in vars(self.runner.tables).items() if isinstance(x, Tensor)}
        return {name: bits(x).clone() for name, x in held.items()}


def test_every_architecture_is_here() -> None:
    """Who adds one gives it a tiny config in models.py, and gets these tests for it."""
    built = {name for config in CONFIGS.values() for name in config["architectures"]}
    assert built == set(registry.ARCHITECTURES)


@models
@modes
def test_an_empty_plan_changes_no_byte(name: str, exact: bool) -> None:
    client = Client(name, exact=exact)
    for _ in range(2):  # before anything was ever started, and in the middle of a request
        state, rest = Snapshot(client.runner.state), client.everything()
        result = client.launch({})
        assert result.work == result.used == result.missed == ()
        assert client.hidden.shape[0] == 0
        state.assert_unchanged()
        assert all(torch.equal(x, rest[key]) for key, x in client.everything().items())
        client.launch({1: 5}, starts={1: 5})


@models
@modes
def test_rows_without_tokens_change_no_byte_and_report_their_position(name: str, exact: bool) -> None:
    client = Client(name, exact=exact)
    client.launch({1: 5, 2: 2, 3: 70}, starts={1: 5, 2: 2, 3: 70})
    state, rest = Snapshot(client.runner.state), client.everything()
    result = client.launch({2: 0, 3: 0, 1: 0})
    assert client.hidden.shape[0] == 0
    assert [work.row for work in result.work] == [2, 3, 1] and result.positions == [2, 70, 5]
    assert result.tokens == [()] * 3 and not result.logprobs
    state.assert_unchanged()
    assert all(torch.equal(x, rest[key]) for key, x in client.everything().items())


@models
@modes
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_rows_without_tokens_leave_the_others_alone(name: str, exact: bool, temperature: float) -> None:
    """Hidden states, tokens and log-probabilities of row 2, with and without idle rows in its steps."""
    params = SamplingParams(temperature=temperature, logprobs=2)

    def serve(idle: list[int]) -> tuple[list[Tensor], list[tuple[object, ...]]]:
        client = Client(name, exact=exact, params=params)
        client.launch({1: 5, 2: 3, 3: 2}, starts={1: 5, 2: 3, 3: 2})
        hidden, reported = [], []
        for _ in range(6):
            result = client.launch({**dict.fromkeys(idle, 0), 2: 1})
            hidden.append(client.hidden.clone())
            at = [work.row for work in result.work].index(Row(2))
            reported.append((result.positions[at], result.tokens[at], result.logprobs[Row(2)]))
        return hidden, reported

    alone, expected = serve([])
    for idle in ([1], [3, 1]):
        hidden, reported = serve(idle)
        for a, b in zip(alone, hidden, strict=True):
            assert same_bits(a, b) if exact else torch.allclose(a, b, atol=1e-5)
        assert not exact or reported == expected


@pytest.mark.parametrize("name", RECURRENT)
@modes
def test_a_row_without_tokens_folds_and_publishes_when_a_line_is_due(name: str, exact: bool) -> None:
    """Two windows of two reach the line at 4; the step without tokens folds it into the granted slot."""
    client = Client(name, exact=exact)
    client.launch({1: 2}, starts={1: 4})
    client.launch({1: 2})
    before, rest = Snapshot(client.runner.state), client.everything()
    grant = Grant(Row(1), 1, Slot(7), line=4)
    result = client.launch({1: 0}, grants=(grant,))
    assert result.used == (grant,) and result.missed == ()
    assert result.positions == [4] and result.tokens == [()]
    before.assert_only(slots={7}, cells={}, cursors={1})
    assert {slot for _, slots in before.changed("slot") for slot in slots} == {7}
    assert all(torch.equal(x, rest[key]) for key, x in client.everything().items())
    for layer in client.runner.state.layers.values():
        assert all(saved[7].isfinite().all() for saved in layer.saved().values())


@models
def test_padding_is_never_written(name: str) -> None:
    """Row 0, slot 0 and page 0 after prompts, decodes and idle rows: NaN, and the same NaN as before."""
    client = Client(name, exact=False)
    pools = [x for kind, _, x in state_tensors(client.runner.state) if kind != "cursor"]
    pools += [part for parts in client.runner.kv.layers.values() for part in parts]
    client.launch({1: 70, 2: 2}, starts={1: 70, 2: 2})
    for _ in range(12):
        client.launch({1: 1, 2: 1})
    client.launch({1: 0, 2: 1})
    assert all(bool(x[0].isnan().all()) for x in pools)
    assert all(int(cursor[0]) == 0 for cursor in vars(client.runner.state.cursors).values())
