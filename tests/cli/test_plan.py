from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import cli

CONFIGS = Path(__file__).parents[1] / "capacity" / "configs"


@pytest.fixture(params=["lfm2-1.2b", "qwen3.5-4b"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Nothing but a published config.json."""
    (tmp_path / "config.json").write_text((CONFIGS / f"{request.param}.json").read_text())
    return str(tmp_path)


def plan(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert cli.main(["plan", *argv, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    told: dict[str, Any] = json.loads(printed.out)
    return told


def test_for_people(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", directory, "--memory", "80GiB", "--dtype", "bfloat16"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("Capacity on cpu, bfloat16") and "of 80.00 GiB" in printed.out
    assert printed.err == ""


def test_for_programs(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, directory, "--memory", "80GiB", "--device", "cuda", "--dtype", "bfloat16")
    assert 79 << 30 < told["bytes"]["total"] <= 80 << 30
    limits = told["limits"]
    assert limits["max_num_seqs"] == 64 and (limits["num_slots"], limits["num_checkpoints"]) == (320, 256)


def test_every_option_counts(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "--memory": "90GiB",
        "--device": "cuda:1",
        "--dtype": "float16",
        "--state-dtype": "bfloat16",
        "--max-num-seqs": "16",
        "--max-num-batched-tokens": "512",
        "--max-model-len": "5000",
        "--page-size": "32",
        "--fold-every": "8",
        "--speculative-config": '{"method": "ngram", "num_speculative_tokens": 2}',
        "--num-pages": "700",
        "--num-slots": "20",
    }
    argv = [word for option in options.items() for word in option]
    told = plan(capsys, directory, *argv)
    got = {f"--{name.replace('_', '-')}": str(value) for name, value in told["options"].items()}
    del options["--speculative-config"]
    assert options.items() <= got.items()
    assert told["options"]["speculative_config"]["num_speculative_tokens"] == 2
    assert told["limits"]["num_pages"] == 700 and told["limits"]["max_window"] == 3


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--memory", "80 apples"], "memory='80 apples' is not a size: write it like 80GiB"),
        (["--memory", "1GiB"], "give memory='"),
        (["--device", "cuda:63"], "device='cuda:63' is not here to ask how much is free: give memory="),
        (["--dtype", "fp4"], "dtype='fp4' is not one of float32, bfloat16, float16"),
        (["--page-size", "48"], "page_size=48 must divide 64 or be a multiple of it"),
        (["--max-model-len", "1000000"], "max_model_len=1000000: the model has"),
    ],
)
def test_what_cannot_be_planned(
    directory: str, argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", directory, *argv]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("holdfast: ") and sentence in printed.err and printed.err.count("\n") == 1


def test_no_such_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(tmp_path / "absent")]) == 1
    assert "absent is not a directory" in capsys.readouterr().err


def test_speculation_must_be_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", str(tmp_path), "--speculative-config", "{ngram}"])
    assert ended.value.code == 2 and "--speculative-config: '{ngram}' is not JSON" in capsys.readouterr().err


def test_help_needs_no_torch() -> None:
    source = (
        "import sys; sys.modules['torch'] = None; from holdfast.cli import main; main(['plan', '--help'])"
    )
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.returncode == 0 and "--speculative-config JSON" in run.stdout
