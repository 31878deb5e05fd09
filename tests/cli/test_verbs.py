"""The verbs that load a model for one question."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.random_model import random_model

from holdfast import LLM, SamplingParams, cli

ENGINE = ("--max-num-seqs", "4", "--max-model-len", "256", "--num-pages", "30")


def test_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(random_model(), max_num_seqs=4, max_model_len=256, num_pages=30)
    params = SamplingParams(max_tokens=12, temperature=0.9, seed=3, n=2)
    [expected] = llm.generate(["The tide"], params)
    monkeypatch.setattr("holdfast.cli.complete.load_model", lambda *_: llm)
    sampling = ("--max-tokens", "12", "--temperature", "0.9", "--seed", "3", "-n", "2")
    assert cli.main(["complete", "The tide", *sampling, *ENGINE]) == 0
    assert capsys.readouterr().out == "".join(f"{each.text}\n" for each in expected.outputs)
    monkeypatch.setattr("sys.stdin", io.StringIO("The tide"))
    assert cli.main(["complete", *sampling, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["token_ids"] for each in told["outputs"]] == [list(e.token_ids) for e in expected.outputs]
    assert told["prompt_tokens"] == 8 and told["outputs"][0]["finish_reason"] == "length"
    assert cli.main(["complete", ""]) == 1
    assert "the prompt is empty" in capsys.readouterr().err


def test_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert cli.main(["models"]) == 0
    printed = capsys.readouterr().out
    assert (
        "  Lfm2ForCausalLM\n" in printed
        and "Built in:\n  holdfast-small\n" in printed
        and "No model of the hub" in printed
    )
    for name, kind in (("maker--known", "Lfm2ForCausalLM"), ("maker--new", "NewForCausalLM")):
        snapshot = tmp_path / f"models--{name}" / "snapshots" / "1"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({"architectures": [kind]}))
    assert cli.main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["downloaded"]
    assert [(m["name"], m["known"]) for m in found] == [("maker/known", True), ("maker/new", False)]
    assert cli.main(["models"]) == 0
    assert "  maker/new  NewForCausalLM (not known)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (("latency", "--batch", "2", "--rounds", "2"), "tpot_ms"),
        (("throughput", "--requests", "5"), "output_tokens_per_second"),
    ],
)
def test_bench_offline(argv: tuple[str, ...], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *argv, "--input-len", "6", "--output-len", "4", "--json", *ENGINE]) == 0
    assert json.loads(capsys.readouterr().out)[key]
    assert cli.main(["bench", *argv, "--input-len", "600", *ENGINE]) == 1
    assert "the prompt has 600 tokens" in capsys.readouterr().err
