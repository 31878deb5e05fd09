"""`holdfast eval`: the formats it reads, what it calls right, and that it sees a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.faults.wrong_place import next_lanes_slots

from holdfast import cli
from holdfast.eval.questions import SETS, QuestionSet, chosen_letter, last_number, read_set, set_names


def test_the_sets_that_come_with_it() -> None:
    sizes = {name: len(read_set(name).questions) for name in set_names()}
    assert sizes == {"gsm8k": 300, "ifeval": 540, "recall": 133}
    assert [read_set(name).judged for name in ("gsm8k", "ifeval", "recall")] == [True, False, True]


def right(asked: QuestionSet, place: int, said: str) -> bool:
    judge = asked.questions[place].right
    assert judge is not None
    return judge(said)


def test_files_in_the_format_of_gsm8k(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} tides?", "answer": f"1 + <<1+1=2>>...\n#### 1,{n}00"} for n in range(4)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    asked = read_set(str(file))
    assert asked.name == "sums" and asked.questions[2].messages == [{"role": "user", "content": "2 tides?"}]
    assert right(asked, 2, "So it is 1200.") and not right(asked, 2, "1,300") and not right(asked, 2, "none")
    assert [it.messages[0]["content"] for it in read_set(str(file), 2).questions] == ["0 tides?", "2 tides?"]


def test_files_in_the_format_of_c_eval(tmp_path: Path) -> None:
    file = tmp_path / "law_val.csv"
    file.write_text(
        'id,question,A,B,C,D,answer,explanation\n0,"潮汐,由谁引起?",月球,火星,风,鱼,A,\n', encoding="utf-8"
    )
    asked = read_set(str(file))
    assert (
        asked.questions[0].messages[0]["content"] == "潮汐,由谁引起?\nA. 月球\nB. 火星\nC. 风\nD. 鱼\n答案:"
    )
    assert right(asked, 0, " A") and right(asked, 0, "答案是A。") and not right(asked, 0, "B, not A")


def test_what_counts_as_said() -> None:
    assert [last_number(text) for text in ("$1,200.50 left", "-3", "no")] == ["1200.50", "-3", None]
    assert [chosen_letter(text) for text in ("(C)", "Apples", "")] == ["C", None, None]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no rows of a format"),
        ("[1]\n", "line 1, is not a JSON object"),
        ("{\n", "line 1, is not JSON"),
        ('{"text": "a"}\n', "no rows of a format"),
        ('{"prompt": "a"}\n{"text": "b"}\n', "a row is not as IFEval has it"),
    ],
)
def test_other_files_are_refused(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.jsonl").write_text(content)
    with pytest.raises(SystemExit) as exit:
        cli.main(["eval", "--data", str(tmp_path / "file.jsonl")])
    assert exit.value.code == 2 and told in capsys.readouterr().err


def test_a_set_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval", "--data", "mmlu"])
    assert "mmlu is no file, and no set of Holdfast's: gsm8k, ifeval, recall" in capsys.readouterr().err


def evaluate(capsys: pytest.CaptureFixture[str], file: Path) -> tuple[int, dict[str, Any]]:
    status = cli.main(["eval", "--data", str(file), "--max-tokens", "12", "--json"])
    told = json.loads(capsys.readouterr().out)
    return status, told["sets"][0]


def test_a_sound_engine_and_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text("".join((SETS / "recall.jsonl").open().readlines()[:6]))
    status, found = evaluate(capsys, short)
    assert status == 0 and found["differing"] == [] and found["ties"] == 0 and found["worst"] < 1e-4
    assert found["resumed_tokens"] > 0 and found["accept_length"] > 1
    assert found["right"] == found["right_plain"]
    next_lanes_slots(monkeypatch)
    status, found = evaluate(capsys, short)
    assert status == 1 and "of the answer: expected" in found["differing"][0]


@pytest.mark.slow
def test_every_answer_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "--limit", "16", "--max-tokens", "24"]) == 0, capsys.readouterr().out
