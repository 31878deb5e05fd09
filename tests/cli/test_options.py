"""Options: flags before the environment, the environment before a file; and no misspelt one passes."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from holdfast import ConfigError, cli
from holdfast.cli.options import ENGINE_HELP, gather
from holdfast.config import EngineConfig
from holdfast.server.options import HELP, ServerOptions


def options(*argv: str) -> tuple[EngineConfig, ServerOptions]:
    config, server = gather(cli.parse(["serve", *argv]), [EngineConfig, ServerOptions])
    return config, server


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_CONFIG", "HOLDFAST_PORT", "HOLDFAST_HOST"):
        monkeypatch.delenv(name, raising=False)


def test_every_option_has_help() -> None:
    assert ENGINE_HELP.keys() == {field.name for field in fields(EngineConfig)}
    assert HELP.keys() == {field.name for field in fields(ServerOptions)}
    assert not ENGINE_HELP.keys() & HELP.keys()


def test_nothing_given_is_the_defaults() -> None:
    assert options() == (EngineConfig(), ServerOptions())


def test_flags_come_before_the_environment_and_that_before_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nhost: 10.0.0.1\nmax-queue: 7\nexact: true\nspeculative_config:\n"
                    "  method: ngram\n  num_speculative_tokens: 3\n")  # fmt: skip
    monkeypatch.setenv("HOLDFAST_PORT", "2")
    monkeypatch.setenv("HOLDFAST_HOST", "10.0.0.2")
    monkeypatch.setenv("HOLDFAST_OVERLAP", "false")
    config, server = options("--config", str(file), "--port", "3")
    assert (server.port, server.host, server.max_queue) == (3, "10.0.0.2", 7)
    assert config.exact and not config.overlap and config.max_drafts == 3
    monkeypatch.setenv("HOLDFAST_CONFIG", str(file))
    assert options()[1].max_queue == 7


def test_every_kind_of_value() -> None:
    config, server = options(
        *("--memory", "2GiB", "--num-pages", "9", "--no-enable-prefix-caching", "--read-timeout", "1.5"),
        *("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 2}', "--max-body", "1000"),
    )
    assert (config.memory, config.num_pages, config.enable_prefix_caching) == ("2GiB", 9, False)
    assert server.read_timeout == 1.5 and server.body_bytes == 1000 and config.max_drafts == 2


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("HOLDFAST_PROT", "1", "there is no environment variable HOLDFAST_PROT; did you mean HOLDFAST_PORT?"),
        ("HOLDFAST_PORT", "many", "HOLDFAST_PORT='many'"),
        ("HOLDFAST_EXACT", "perhaps", "HOLDFAST_EXACT='perhaps': must be true or false"),
        ("HOLDFAST_SPECULATIVE_CONFIG", "{", "is not JSON"),
        ("HOLDFAST_LOG_FORMAT", "xml", "log_format='xml' is not one of text, json"),
        ("HOLDFAST_MAX_BODY", "9 apples", "max_body='9 apples' is not a size"),
        ("HOLDFAST_PORT", "70000", "port=70000 must be between"),
        ("HOLDFAST_REQUEST_TIMEOUT", "0", "request_timeout=0.0 must be at least 1"),
    ],
)
def test_a_wrong_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as refused:
        options()
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot: 1", "there is no option prot; did you mean port?"),
        ("- port", "must hold names and values"),
        ("port: [", "is not YAML"),
        ("max_num_seqs: many", "max_num_seqs='many' must be a whole number"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        options("--config", str(file))
    assert sentence in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        options("--config", str(tmp_path / "absent.yaml"))


def test_an_options_of_another_verb_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "9")
    args: argparse.Namespace = cli.parse(["plan"])
    assert gather(args, [EngineConfig]) == [EngineConfig()]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["serve", "--prot", "1"], "there is no option --prot; did you mean --port?"),
        (["serve", "--max-num-seq=3"], "there is no option --max-num-seq; did you mean --max-num-seqs?"),
        (["chat", "--por", "1"], "there is no option --por"),
        (["bench", "serve", "--workload", "poison"], "invalid choice: 'poison'"),
        (["bench", "serve", "--rates", "3"], "did you mean --rate?"),
        (["bench", "serve", "--workload", "trace"], "--workload trace needs --trace FILE"),
        (["bench", "serve", "--goodput", "ttfb:3"], "write it like ttft:300"),
        (["bench", "serve", "--rate", "0"], "--rate and --speed must be more than 0"),
    ],
)
def test_a_wrong_flag(argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(argv)
    assert exit.value.code == 2
    told = capsys.readouterr().err
    assert sentence in told and "Try holdfast" in told
