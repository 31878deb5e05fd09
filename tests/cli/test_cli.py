"""The command line with a model that says what the test wants it to."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast import Finding, StateCorruption, cli
from holdfast.request import Rejected, SamplingParams


@dataclass
class Output:
    text: str


@dataclass
class FakeLLM:
    """Answers with the given pieces, and remembers what it was asked and whether it was let finish."""

    pieces: list[str] = field(default_factory=lambda: ["Hel", "", "lo"])
    before_piece: Callable[[int], None] = lambda number: None
    asked: list[list[dict[str, str]]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    advised: SamplingParams = field(default_factory=SamplingParams)

    def default_params(self) -> SamplingParams:
        return self.advised

    def stream(self, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[Output]:
        self.asked.append(messages)
        self.params.append(params)
        self.finished.append(False)
        text = ""
        for number, piece in enumerate(self.pieces):
            self.before_piece(number)
            text += piece
            yield Output(text)
        self.finished[-1] = True


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command with this model and these lines of input; `terminal` types them at the prompt."""

    def run(llm: FakeLLM, *argv: str, lines: list[Any] = ["Hi"], terminal: bool = False) -> int:  # noqa: B006
        monkeypatch.setattr("holdfast.cli.chat.load_model", lambda *_: llm)
        if terminal:
            typed = iter(lines)
            monkeypatch.setattr("builtins.input", lambda _: type_in(typed))
            monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            monkeypatch.setattr(sys, "stdin", Terminal())
        else:
            monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli.main(["chat", *argv])

    return run


def type_in(typed: Iterator[Any]) -> str:
    event = next(typed, EOFError)
    if isinstance(event, str):
        return event
    raise event


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_one_answer_for_each_line_of_a_pipe(run, capsys) -> None:
    llm = FakeLLM()
    assert run(llm, lines=["Hi", "", "And?"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Hello\nHello\n"
    assert printed.err == ""
    assert llm.asked == [[user("Hi")], [user("Hi"), assistant("Hello"), user("And?")]]


@pytest.mark.parametrize(
    ("advised", "temperature"), [(SamplingParams(temperature=1.0, top_p=0.9), 1.0), (SamplingParams(), 0.7)]
)
def test_what_nobody_asks_for_is_as_the_model_advises(run, advised, temperature) -> None:
    llm = FakeLLM(advised=advised)
    assert run(llm, lines=["Hi"]) == 0
    assert llm.params == [replace(advised, max_tokens=512, temperature=temperature)]


def test_options_reach_the_model(run) -> None:
    llm = FakeLLM()
    options = ["--max-tokens", "9", "--temperature", "0", "--top-p", "0.5", "--top-k", "3", "--seed", "4"]
    assert run(llm, "--system", "Be brief.", *options) == 0
    assert llm.asked[0][0] == {"role": "system", "content": "Be brief."}
    assert llm.params == [SamplingParams(max_tokens=9, temperature=0.0, top_p=0.5, top_k=3, seed=4)]


def test_reset_forgets_all_but_the_system_message(run) -> None:
    llm = FakeLLM()
    run(llm, "--system", "S", lines=["Hi", "/reset", "Again"])
    assert llm.asked[1] == [{"role": "system", "content": "S"}, user("Again")]


def test_exit_leaves(run, capsys) -> None:
    llm = FakeLLM()
    assert run(llm, lines=["/exit", "Hi"], terminal=True) == 0
    assert llm.asked == []


def test_end_of_input_leaves_and_an_interrupt_at_the_prompt_does_not(run, capsys) -> None:
    llm = FakeLLM()
    assert run(llm, lines=[KeyboardInterrupt, "Hi", EOFError], terminal=True) == 0
    assert llm.asked == [[user("Hi")]]
    assert "/exit or Ctrl-D leaves" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_an_interrupt_stops_the_answer_and_not_the_program(run, capsys, terminal: bool) -> None:
    def interrupt(number: int) -> None:
        if number == 1 and len(llm.asked) == 1:
            signal.raise_signal(signal.SIGINT)

    llm = FakeLLM(pieces=["one ", "two ", "three"], before_piece=interrupt)
    handler = signal.getsignal(signal.SIGINT)
    assert run(llm, lines=["Hi", "More"], terminal=terminal) == 0
    assert signal.getsignal(signal.SIGINT) is handler
    assert llm.finished == [False, True]
    assert capsys.readouterr().out.split("\n")[:2] == ["one two ", "one two three"]
    assert llm.asked[1] == [user("Hi"), assistant("one two "), user("More")]


def test_a_second_interrupt_ends_the_program(run, capsys) -> None:
    def interrupt_twice(_: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    assert run(FakeLLM(before_piece=interrupt_twice), terminal=True) == 130


def test_a_refused_request_is_one_sentence_and_the_conversation_goes_on(run, capsys) -> None:
    def refuse(number: int) -> None:
        if len(llm.asked) == 1:
            raise Rejected("r0", "9000 tokens, the limit is 4096")

    llm = FakeLLM(before_piece=refuse)
    assert run(llm, lines=["too long", "short"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "holdfast: request r0: 9000 tokens, the limit is 4096\n"
    assert printed.out == "Hello\n"
    assert llm.asked[1] == [user("short")]


def test_a_terminal_is_not_steered_by_what_the_model_says(run, capsys) -> None:
    run(FakeLLM(pieces=["a\x1b[2Jb\x07\x9bc\td\n"]), terminal=True)
    assert capsys.readouterr().out.startswith("a␛[2Jb␇\ufffdc\td\n")


def test_a_pipe_gets_what_the_model_says(run, capsys) -> None:
    run(FakeLLM(pieces=["a\x1b[2Jb"]))
    assert capsys.readouterr().out == "a\x1b[2Jb\n"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["chat", "--temperature", "-1"], "temperature=-1.0 must be 0 (greedy) or more"),
        (["chat", "--max-tokens", "0"], "max_tokens=0 must be at least 1"),
        (["chat", "--dtype", "fp4"], "dtype='fp4' is not one of float32, bfloat16, float16"),
        ([], "COMMAND"),
        (["sing"], "invalid choice: 'sing'"),
    ],
)
def test_a_wrong_command_line(argv: list[str], sentence: str, capsys) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(argv)
    assert exit.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("nowhere is not a directory")

    monkeypatch.setattr("holdfast.cli.chat.load_model", refuse)
    assert cli.main(["chat", "nowhere"]) == 1
    assert capsys.readouterr().err == "holdfast: nowhere is not a directory\n"


def holdfast(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "holdfast", *argv], capture_output=True, text=True)


def test_help_and_version() -> None:
    assert holdfast("--version").stdout.startswith("holdfast ")
    assert "talk to a model" in holdfast("--help").stdout
    assert "Ctrl-C    stops the answer" in holdfast("chat", "--help").stdout


def test_help_needs_no_torch() -> None:
    source = (
        "import sys; sys.modules['torch'] = None; from holdfast.cli import main; main(['chat', '--help'])"
    )
    assert subprocess.run([sys.executable, "-c", source], capture_output=True).returncode == 0


def test_an_answer_from_corrupt_state_is_reported_and_not_remembered(run, capsys) -> None:
    finding = Finding(7, "read", "blocks.1", "temporal", 1, 1, place=3, expected=16, found=-1)

    def broken(number: int) -> None:
        if number == 1 and len(llm.asked) == 1:
            raise StateCorruption(("1",), (finding,))

    llm = FakeLLM(before_piece=broken)
    assert run(llm, lines=["Hi", "Again"]) == 1
    assert "step 7: read of temporal in layer blocks.1" in capsys.readouterr().err
    assert llm.asked[1] == [user("Again")]
