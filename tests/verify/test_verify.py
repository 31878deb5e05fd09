"""`holdfast verify` on a random model: what it says of a sound engine, and of one with a planted fault."""

from __future__ import annotations

import builtins
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.faults import forms
from tests.faults.fault import Fault
from tests.faults.wrong_place import next_lanes_slots
from tests.random_model import random_model
from tests.spec.formats import WRITERS, Target

from holdfast import cli
from holdfast.memory.state_pool import StatePool
from holdfast.verify.cells import CELLS, LIBRARY, cell_names
from holdfast.verify.matrix import Matrix


def verify(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any]]:
    status = cli.main(["verify", str(random_model()), "--quick", "--json", *argv])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, {cell["cell"]: cell for cell in told["cells"]} | {"equal": told["equal"]}


def cells(*names: str) -> list[str]:
    return [word for name in names for word in ("--cell", name)]


def test_a_sound_engine(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = verify(capsys, *cells("pre-empted", "cancelled-company", "hits", LIBRARY))
    assert status == 0 and told["equal"]
    assert told["pre-empted"]["result"] == told[LIBRARY]["result"] == "equal"
    assert told["pre-empted"]["happened"]["pre-emptions"] > 0
    assert told["cancelled-company"]["happened"]["cancellations"] > 0
    assert told["hits"]["happened"]["hits"] > 0
    assert told[LIBRARY]["positions"] == 8 * 24
    assert 0 < told[LIBRARY]["worst"] < 1e-4


def test_exact_mode_is_held_to_its_bits(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = verify(capsys, *cells("exact-together"))
    assert status == 0 and told["exact-together"]["worst"] == 0.0


def test_lower_precision_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = verify(capsys, "--dtype", "bfloat16", *cells("chunks-of-7", LIBRARY, "exact-together"))
    assert status == 0
    assert told["chunks-of-7"]["result"] == told[LIBRARY]["result"] == "KL"
    assert 0 < told[LIBRARY]["worst"] < 0.05
    assert told["exact-together"]["result"] == "skipped"


def test_a_planted_fault_is_found_and_can_be_seen_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lanes that read each other's checkpoints: no single request would notice."""
    next_lanes_slots(monkeypatch)
    assert (
        cli.main(["verify", str(random_model()), "--quick", "--seed", "3", *cells("together", LIBRARY)]) == 1
    )
    printed = capsys.readouterr().out
    assert "2 cells: 1 differs, 1 equal" in printed
    assert "of 8 answers; prompt" in printed and "of the answer: expected" in " ".join(printed.split())

    [again] = [line for line in printed.splitlines() if "again: " in line]
    program, *words = shlex.split(again.partition("again: ")[2])
    assert program == "holdfast" and cli.main(words) == 1
    repeated = capsys.readouterr().out
    assert [line for line in repeated.splitlines() if "answers; prompt" in line] == [
        line for line in printed.splitlines() if "answers; prompt" in line
    ]
    status, told = verify(capsys, *cells("together"))
    assert status == 1 and told["together"]["worst"] is None, "JSON knows no infinity"

    monkeypatch.undo()
    assert cli.main(words) == 0


def test_answers_with_a_form(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = verify(capsys, *cells("structured"))
    assert status == 0 and told["structured"]["happened"]["masks"] > 50


def test_a_model_without_a_tokenizer_has_no_forms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for file in random_model().iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    assert cli.main(["verify", str(tmp_path), "--quick", *cells("structured")]) == 0
    assert "the model's directory has no tokenizer.json" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
@pytest.mark.parametrize("fault", forms.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_forms_is_found(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault.plant(monkeypatch)
    status, told = verify(capsys, *cells("structured"))
    assert status == 1 and told["structured"]["result"] == "differs"


def test_an_engine_that_breaks_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = StatePool.begin

    def breaks(pool: StatePool, **given: Any) -> Any:
        if len(given["rows"]) > 1:
            raise RuntimeError("lost")
        return begin(pool, **given)

    monkeypatch.setattr(StatePool, "begin", breaks)
    status, told = verify(capsys, *cells("together"))
    assert status == 1 and told["together"]["detail"] == "RuntimeError: lost"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "transformers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert cli.main(["verify", str(random_model()), "--quick", *cells(LIBRARY)]) == 0
    assert "not installed" in capsys.readouterr().out


def test_a_cell_where_nothing_happened_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Matrix, "_tight", lambda *_: {})
    status, told = verify(capsys, *cells("pre-empted"))
    assert status == 1
    assert told["pre-empted"]["detail"] == "there were no pre-emptions, so nothing is shown"


@pytest.mark.parametrize("exact", [False, True])
def test_weights_are_loaded_once(exact: bool) -> None:
    matrix = Matrix(random_model(), quick=True)
    matrix._engine({"exact": not exact})  # its weights lie otherwise
    first, second = (matrix._engine({"exact": exact, "overlap": overlap}) for overlap in (False, True))
    held, shared = (dict(engine.runner.model.named_parameters()) for engine in (first, second))
    assert all(held[name] is weight for name, weight in shared.items()) and held
    assert first.runner.model.ops is not second.runner.model.ops


def test_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["verify", "--cell", "chunks-of-8"])
    assert exit.value.code == 2
    assert "--cell chunks-of-8: the cells are together, " in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_the_matrix_itself() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    assert set(cell_names(quick=True)) < set(cell_names())
    assert set(cell_names(drafter=False)) < set(cell_names())
    wanted = {what for cell in CELLS for what in cell.must}
    assert wanted == {"pre-emptions", "cancellations", "hits", "drafts", "masks"}


TREE = {"topk": 2, "num_draft_tokens": 6}


def drafter(method: str, directory: Path, **asked: Any) -> list[str]:
    head = WRITERS[method](Target.of(random_model()), directory / method)
    config = {"method": method, "model": str(head), "num_speculative_tokens": 3, **asked}
    return ["--speculative-config", json.dumps(config)]


def test_a_drafter_of_one_s_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = drafter("eagle", tmp_path, **TREE)
    status, told = verify(capsys, *asked, *cells("drafter-hits", "exact-drafter"))
    assert status == 0 and told["drafter-hits"]["happened"]["drafts"] > 0
    assert told["exact-drafter"]["detail"] == "exact mode is for chains, not for trees"
    words = shlex.split(told["drafter-hits"]["again"])
    assert words[words.index("--speculative-config") + 1] == asked[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", WRITERS)
def test_every_cell_of_a_drafter(method: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [cell.name for cell in CELLS if cell.drafter]
    status, told = verify(capsys, *drafter(method, tmp_path), *cells(*names))
    assert status == 0, told
    assert not [name for name in names if told[name]["result"] != "equal"]


def test_cells_that_need_a_drafter_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    status, told = verify(capsys, *cells("drafter"))
    assert status == 0 and told["drafter"]["detail"] == "--speculative-config names no drafter"


@pytest.mark.slow
def test_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(random_model())]) == 0, capsys.readouterr().out
