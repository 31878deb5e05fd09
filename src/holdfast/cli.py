"""The command line: `holdfast chat` talks to a model in the terminal, `plan` sizes one, `verify` checks one."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import DTYPES, SANITIZERS, STATE_DTYPES, EngineConfig
from .corruption import StateCorruption
from .request import SamplingParams

if TYPE_CHECKING:
    from .llm import LLM

PLAN_OPTIONS = {
    "memory": "all that the engine may take, like 80GiB (default: most of what is free here)",
    "device": "cpu, cuda or cuda:N",
    "dtype": f"of weights and activations: {', '.join(DTYPES)}",
    "state_dtype": f"of recurrent state: {', '.join(STATE_DTYPES)}",
    "max_num_seqs": "requests that may run at once",
    "max_num_batched_tokens": "tokens of one step",
    "max_model_len": "tokens of one request (default: all the model's positions, or what fits)",
    "speculative_config": 'how drafts are made, as in \'{"method": "ngram", "num_speculative_tokens": 4}\'',
    "page_size": "tokens of a page of KV",
    "fold_every": "tokens between checkpoints of a running request",
    "num_pages": "pages of KV (default: what fits)",
    "num_slots": "slots of recurrent state: one for each running request, the others keep prefixes",
    "num_checkpoints": "how many of the slots keep prefixes (default: what fits)",
    "sanitizer": f"of state: {', '.join(SANITIZERS)}",
}


def as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


METAVARS = {str: "STR", int: "INT", as_json: "JSON"}

CHAT_HELP = """\
Talk to a model. The answer appears as it is made.

  Ctrl-C    stops the answer; the conversation goes on
  /reset    begins a new conversation
  /exit     leaves, and so does Ctrl-D

Prompts may also come through a pipe, one in each line; the answers go to standard output:

  echo "What is a hybrid model?" | holdfast chat path/to/model
"""

PLAN_HELP = """\
What a model would take in memory, how many requests and tokens would fit, and what binds first.
Only config.json is read.

  holdfast plan path/to/model --dtype bfloat16 --device cuda --memory 80GiB --max-num-seqs 256
"""

VERIFY_HELP = """\
Does a model give the same answers whatever the engine does? Each cell of a matrix answers the same requests
in another way (in company, in chunks, pre-empted, resumed, overlapped) and is compared with the plain path: one
request at a time, its prompt whole. The plain path is compared with transformers, where that is installed.

float32 must give the same tokens, unless two were within 1e-4, and log-probabilities within 1e-4; bfloat16 and
float16 a small divergence; exact mode the same bits. The status is 0 if all cells do, 1 if one does not, 2 if the
model cannot be verified at all.

  holdfast verify path/to/model --quick
  holdfast verify path/to/model --seed 7 --cell chunks-of-7     that cell again, with the same requests
"""


def main(argv: Sequence[str] | None = None) -> int:
    """0: done. 1: it could not be done. 2: the command line was wrong. 130: interrupted."""
    parser = make_parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(parser, args))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader went away; what is left in the buffer must not be written at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast",
        description="A serving engine for hybrid language models: attention beside recurrent state.",
    )
    parser.add_argument("--version", action="version", version=f"holdfast {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_chat(commands)
    _add_plan(commands)
    _add_verify(commands)
    return parser


def _add_chat(commands: Any) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description=CHAT_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chat.set_defaults(run=run_chat)
    chat.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a directory with config.json, *.safetensors, tokenizer.json; without it, a built-in demo model",
    )
    chat.add_argument("--system", metavar="TEXT", help="a system message to begin every conversation with")
    engine = chat.add_argument_group("engine")
    engine.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    engine.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")
    engine.add_argument(
        "--sanitizer",
        default="off",
        choices=SANITIZERS,
        help="check every access to state, or recompute some of it as well (default: %(default)s)",
    )
    sampling = chat.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=int, default=512, help="longest answer (default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=0.7, help="0 always takes the likeliest token")
    sampling.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s, everything)")
    sampling.add_argument("--top-k", type=int, default=0, help="(default: %(default)s, everything)")
    sampling.add_argument("--seed", type=int, help="the same seed and prompts give the same answers")


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what a model would take in memory, and what would fit",
        description=PLAN_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    plan.set_defaults(run=run_plan)
    plan.add_argument("model", metavar="MODEL", help="a directory with config.json")
    plan.add_argument("--json", action="store_true", help="print JSON, sizes in bytes")
    options = plan.add_argument_group("engine")
    for name, told in PLAN_OPTIONS.items():
        default = getattr(EngineConfig, name)
        told += "" if default is None else f" (default: {default})"
        kind: Any = str if isinstance(default, str) or name == "memory" else int
        kind = as_json if name == "speculative_config" else kind
        options.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=METAVARS[kind], help=told)


def _add_verify(commands: Any) -> None:
    verify = commands.add_parser(
        "verify",
        help="whether a model gives the same answers whatever the engine does",
        description=VERIFY_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.set_defaults(run=run_verify)
    verify.add_argument(
        "model", nargs="?", metavar="MODEL", help="a directory; without it, a built-in demo model"
    )
    verify.add_argument("--quick", action="store_true", help="fewer cells, fewer and shorter requests")
    verify.add_argument(
        "--cell", action="append", metavar="NAME", help="only this one; may be given several times"
    )
    verify.add_argument("--seed", type=int, default=0, help="of the requests (default: %(default)s)")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    verify.add_argument("--dtype", default="float32", choices=DTYPES, help="of weights and activations")


def run_verify(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    from .verify.cells import cell_names  # needs no torch: a wrong name is told at once

    names = args.cell or cell_names(quick=args.quick)
    if unknown := sorted(set(names) - set(cell_names())):
        parser.error(f"--cell {unknown[0]}: the cells are {', '.join(cell_names())}")
    from .progress import Progress
    from .service import find_model
    from .verify import report
    from .verify.matrix import Matrix

    outcomes = []
    try:
        options = {"device": args.device, "dtype": args.dtype}
        matrix = Matrix(find_model(args.model), args.seed, quick=args.quick, **options)
        with Progress("Verifying", len(names), lambda: names[min(bar.done, len(names) - 1)]) as bar:
            for outcome in matrix.outcomes(names):
                outcomes.append(outcome)
                bar.advance()
    except (OSError, ValueError) as error:
        _fail(error)
        return 2
    again = report.command(args.model, args.seed, quick=args.quick, **options)
    told = report.as_dict(outcomes, again)
    print(json.dumps(told, indent=2) if args.json else report.render(outcomes, again))
    return 0 if told["equal"] else 1


def run_plan(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    given = {name: value for name in PLAN_OPTIONS if (value := getattr(args, name)) is not None}
    try:
        from .blueprint import Blueprint  # takes seconds, and --help should not

        capacity = Blueprint(Path(args.model).expanduser(), EngineConfig(**given)).capacity
    except (OSError, ValueError) as error:
        return _fail(error)
    print(json.dumps(capacity.as_dict(), indent=2) if args.json else capacity.render())
    return 0


def run_chat(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    try:
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            seed=args.seed,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        llm = load_model(args.model, args.device, args.dtype, args.sanitizer)
    except (OSError, ValueError) as error:
        return _fail(error)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a stray byte is no reason to stop
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        _say("Ctrl-C stops an answer, /reset begins anew, /exit or Ctrl-D leaves.")
    return converse(Conversation(llm, params, args.system), interactive)


def load_model(model: str | None, device: str, dtype: str, sanitizer: str) -> LLM:
    # here and not above: torch takes seconds to import, and --help should not
    import torch

    from .llm import LLM
    from .models.demo import DEMO_NOTICE

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch sees no CUDA device here; --device cpu always works")
    if model is None:
        _say(DEMO_NOTICE)
    return LLM(model, device=device, dtype=dtype, sanitizer=sanitizer)


class Conversation:
    """Messages so far, and a model to answer the next."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [{"role": "system", "content": system}] if system else []
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, str]] = list(self._opening)

    def answer(self, text: str) -> Generator[str, None, None]:
        """The answer, piece by piece. One that is cut short is remembered as far as it came."""
        asked = [*self.messages, {"role": "user", "content": text}]
        stream = self._llm.stream(asked, self._params)
        said = ""
        try:
            for output in stream:
                piece, said = output.text[len(said) :], output.text
                yield piece
        except StateCorruption:
            said = ""  # not the model's words
            raise
        finally:
            stream.close()  # cancels what still runs
            if said:
                self.messages = [*asked, {"role": "assistant", "content": said}]


def converse(conversation: Conversation, interactive: bool) -> int:
    status = 0
    for line in _prompts(interactive):
        command = line.strip()
        if command == "/exit":
            break
        if command == "/reset":
            conversation.reset()
        elif command:
            try:
                _print_answer(conversation.answer(line), interactive)
            except (ValueError, StateCorruption) as error:
                status = _fail(error)
    return 0 if interactive else status


def _prompts(interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() line editing and history)
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            _say("\n/exit or Ctrl-D leaves.")
        except EOFError:
            print()
            return


def _print_answer(pieces: Generator[str, None, None], interactive: bool) -> None:
    with _interrupts() as seen, contextlib.closing(pieces):
        for piece in pieces:
            sys.stdout.write(_visible(piece) if interactive else piece)
            sys.stdout.flush()
            if seen:
                break
    print(flush=True)


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The first Ctrl-C is only noted, so that no step of the engine is torn apart; the second ends all."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, previous)


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_CONTROL_PICTURES |= {0x7F: 0x2421} | {code: 0xFFFD for code in range(0x80, 0xA0)}


def _visible(text: str) -> str:
    """A model's words must not steer the terminal."""
    return text.translate(_CONTROL_PICTURES)


def _say(sentence: str) -> None:
    """Not part of an answer, so not on standard output."""
    print(sentence, file=sys.stderr, flush=True)


def _fail(error: Exception) -> int:
    _say(f"holdfast: {error}")
    return 1


def _version() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"
