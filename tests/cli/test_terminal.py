"""`holdfast chat` as a person meets it: a terminal, keys, and a model that does not stop by itself."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

ENDLESS = """
import itertools, sys, time, types
from holdfast import SamplingParams, cli

class Endless:
    def default_params(self):
        return SamplingParams()

    def stream(self, messages, params):
        for count in itertools.count(1):
            time.sleep(0.01)
            yield types.SimpleNamespace(text="word " * count)

cli.chat.load_model = lambda *_: Endless()
sys.exit(cli.main(["chat"]))
"""
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    def __init__(self, command: list[str]) -> None:
        self._keys, screen = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(screen)
        self._unread = ""

    def press(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Everything on the screen up to and with `text`."""
        if not self._shows(text, seconds):
            pytest.fail(f"no {text!r} within {seconds} s, only {self._unread!r}")
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def interrupt(self, text: str) -> None:
        """Ctrl-C until it is answered: readline forgets one that comes just when it has written its prompt."""
        for _ in range(30):
            self.press(CTRL_C)
            if self._shows(text, 2):
                break
        self.wait_for(text, 0)

    def _shows(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._keys], [], [], left)[0]:
                return False
            self._unread += os.read(self._keys, 4096).decode()
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keys)


def _own_terminal() -> None:
    """Make the terminal the process's own, so that its keys become signals; and let it hear them, which it would not
    if the tests run in the background of a shell."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal([sys.executable, "-c", ENDLESS])
    yield terminal
    terminal.close()


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.wait_for("> ")
        terminal.press(b"Hi\n")
        terminal.wait_for("word word word")
        terminal.press(CTRL_C)
    terminal.wait_for("> ")
    terminal.interrupt("/exit or Ctrl-D leaves.")
    terminal.wait_for("> ")
    terminal.press(CTRL_D)
    assert terminal.process.wait(timeout=60) == 0


def test_the_built_in_model_answers_through_a_pipe() -> None:
    options = ["--temperature", "0", "--max-tokens", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "chat", *options],
        input="What is 12 + 7?\nMy name is Ivy.\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "This is holdfast-small" in done.stderr
    assert done.stdout.startswith("12 + 7 = 19\n")


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "holdfast", "chat", "--device", "cuda"]
    done = subprocess.run(command, input="", env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr == "holdfast: --device cuda: torch sees no CUDA device here; --device cpu always works\n"
    )


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdin and program.stdout and program.stderr
    program.stdin.write(b"Hi\n")
    program.stdin.close()
    assert program.stdout.read(10) == b"word word "
    program.stdout.close()
    assert program.wait(timeout=60) == 1
    assert program.stderr.read() == b""
    program.stderr.close()
