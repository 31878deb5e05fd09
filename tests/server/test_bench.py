"""`holdfast bench serve` against a server that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import cli

from .running import KEY, Running

SMALL = ("--requests", "6", "--input-len", "6", "--output-len", "5", "--api-key", KEY, "--ignore-eos")


@pytest.mark.parametrize(
    "workload", [("--rate", "200"), ("--chat",), ("--workload", "shared-prefix", "--groups", "2")], ids=str
)
def test_a_server_is_measured(
    server: Running, workload: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    goals = ("--goodput", "ttft:60000", "e2el:60000")
    argv = ["bench", "serve", "--url", server.url, *SMALL, *workload, "--json", "--plot", str(plot), *goals]
    assert cli.main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["requests"] == 6 and told["failed"] == 0 and told["output_tokens"] == 30
    assert 0 < told["ttft_ms"]["p50"] <= told["e2el_ms"]["p50"] and told["prompt_tokens"] > 6 * 6
    assert told["goodput_requests_per_second"] == pytest.approx(told["requests_per_second"])
    assert plot.read_text().startswith("<svg")


def test_a_trace_is_sent(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "prompt": "ebb", "output_length": 2}\n' * 3)
    argv = ["bench", "serve", "--url", server.url, *SMALL, "--workload", "trace", "--trace", str(file)]
    assert cli.main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output_tokens"] == 6


def test_failures_are_the_result(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "serve", "--url", server.url, *SMALL, "--input-len", "900"]
    assert cli.main(argv) == 1
    printed = capsys.readouterr()
    assert "6 of 6 requests failed, the first with HttpError: status 400" in printed.err


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "serve", "--url", "http://127.0.0.1:9", *SMALL]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err
