"""Settings of other engines: what changes nothing is accepted, all else is refused with what takes its place."""

import argparse
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from archerfish import LLM, AsyncEngineArgs, EngineArgs
from archerfish.cli.foreign_options import own_settings, without_foreign_options
from archerfish.cli.main import program
from archerfish.config.compatibility import SettingSource
from archerfish.config.foreign_settings import FOREIGN
from archerfish.config.load import check_settings, load_config
from archerfish.config.settings import EngineConfig, ServerConfig, flag_name
from archerfish.errors import ConfigError
from archerfish.request import SamplingParams

OWN = {field.name for field in fields(EngineConfig)}
OF_SERVICE = {field.name for field in fields(ServerConfig)}
ALL_OWN = OWN | OF_SERVICE | {field.name for field in fields(SamplingParams)} | {"grammar"}
COMMANDS = ("generate", "chat", "batch", "serve", "estimate", "bench latency", "bench throughput", "bench ladder")


@pytest.mark.parametrize("name", FOREIGN)
def test_the_table_names_settings_of_others_and_sends_to_ours(name: str) -> None:
    foreign = FOREIGN[name]
    assert name not in OWN
    named = re.findall(r"\{(?:no_)?(\w+)\}", foreign.instead + foreign.notice)
    assert set(named) <= ALL_OWN and foreign.renamed in {"", *ALL_OWN}
    assert foreign.is_harmless(None)
    if foreign.is_switch:
        assert foreign.is_harmless(False) or foreign.default is True, "what is off by default may be switched off"
    elif foreign.default is not None:
        assert foreign.is_harmless(foreign.default)
    accepts_all = foreign.is_harmless(True) and foreign.is_harmless(False)
    assert foreign.instead or accepts_all, "what may be refused says what to use"


def options_of(path: str) -> list[click.Option]:
    """The options of a command."""
    command: click.Command = program
    for name in path.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(program), name)
        assert found is not None
        command = found
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


@pytest.mark.parametrize("path", COMMANDS)
def test_hints_name_flags_that_the_command_itself_has(path: str) -> None:
    options = options_of(path)
    flags = {flag for option in options for flag in (*option.opts, *option.secondary_opts)}
    origin = SettingSource(own_settings(options), flag_name)
    for name in FOREIGN:
        if FOREIGN[name].renamed in origin.own:
            continue
        for text in (origin.hint(name), origin.notice(name)):
            named = set(re.findall(r"(?<!\w)--[a-z][a-z-]*", text))
            assert named <= flags, (name, text)
            assert "{" not in text


@pytest.mark.parametrize("path", ["serve", "batch"])
def test_parsers_of_tool_calls_are_formats_where_calls_are_read(path: str) -> None:
    given = ["--enable-auto-tool-choice", "--tool-call-parser", "llama3_json", "more"]
    assert without_foreign_options(options_of(path), given) == ["--tool-call-format", "llama3_json", "more"]


def test_hints_in_python_name_settings_of_the_engine() -> None:
    origin = SettingSource(OWN)
    for name in FOREIGN:
        for text in (origin.hint(name), origin.notice(name)):
            assert not re.findall(r"--\w|[{}]", text)
            named = {word for word in re.findall(r"\w+", text) if "_" in word}
            assert not (named & OF_SERVICE) - OWN - {name}, text
    assert origin.hint("disable_radix_cache") == "use enable_prefix_caching=False"
    assert origin.hint("temp") == "give temperature with each request"
    assert origin.hint("ssl_keyfile") == "it is for archerfish serve; leave it out"


QUICKSTART = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "trust_remote_code": True,
    "enforce_eager": False,
    "enable_chunked_prefill": True,
    "disable_log_stats": False,
    "disable_log_requests": True,
    "swap_space": 4,
    "max_seq_len_to_capture": 8192,
    "tokenizer": None,
    "tokenizer_mode": "auto",
    "revision": None,
    "seed": 0,
    "download_dir": None,
    "load_format": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "served_model_name": "a name",
    "enable_lora": False,
    "gpu_memory_utilization": 0.9,
    "max_model_len": 512,
    "runner": "pooling",
    "speculative_config": None,
    "compilation_config": None,
    "limit_mm_per_prompt": {"image": 0, "video": {"count": 0}},
    "async_scheduling": False,
    "use_v2_block_manager": True,
    "use_tqdm_on_load": False,
    "rope_scaling": None,
    "rope_theta": None,
    "disable_cascade_attn": True,
    "enable_reasoning": False,
    "max_log_len": 100,
}


def test_what_asks_for_nothing_is_accepted() -> None:
    assert check_settings(QUICKSTART) == EngineConfig(gpu_memory_utilization=0.9, max_model_len=512)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size 2: Archerfish runs a model on one device"),
        ("tensor_parallel_size", True, "tensor_parallel_size True: "),
        ("tensor_parallel_size", "2", "tensor_parallel_size 2: "),
        ("data_parallel_size", 4, "start several services"),
        ("enable_lora", True, "merge the adapter into the checkpoint"),
        ("enable_chunked_prefill", False, "max_num_batched_tokens"),
        ("swap_space", 16, "leave it out"),
        ("limit_mm_per_prompt", {"image": 1}, "only text is read"),
        ("rope_scaling", {"rope_type": "yarn"}, "use hf_overrides"),
        ("tool_call_parser", "hermes", "tool calls are part of the text here"),
        ("return_tokens_as_token_ids", True, "replies hold text"),
        ("max_num_batched_token", 16, "did you mean max_num_batched_tokens?"),
        ("compilation_config", {"level": 3}, "use kernels reference"),
        ("generation_config", "vllm", "generation_config"),
        ("max_logprobs", 0, "as many may be requested"),
        ("ctx_size", 4096, "ctx_size 4096: use max_model_len"),
        ("n_gpu_layers", 99, "device cuda"),
        ("context_length", 4096, "use max_model_len"),
        ("mem_fraction_static", 0.8, "use gpu_memory_utilization"),
        ("download_dir", "/models", "HF_HUB_CACHE"),
        ("quantization", "awq", "quantized already are not read"),
        ("load_format", "gguf", "only safetensors are read"),
        ("dtype", "int3", "'int3' is not one of auto, float32, bfloat16, float16"),
        ("nothing_like_it", 1, "nothing_like_it is not a setting; archerfish serve --help lists all"),
    ],
)
def test_what_asks_for_more_is_refused_in_a_sentence(name: str, value: Any, says: str) -> None:
    for make in (check_settings, lambda given: AsyncEngineArgs(**given), lambda given: LLM("no/such/place", **given)):
        with pytest.raises(ConfigError, match=re.escape(says)) as caught:
            make({name: value})
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("dtype", "half", "float16"),
        ("dtype", "float", "float32"),
        ("dtype", torch.bfloat16, "bfloat16"),
        ("kv_cache_dtype", "fp8_e4m3", "fp8"),
        ("load_format", "safetensors", "auto"),
    ],
)
def test_values_of_ours_have_other_names_elsewhere(name: str, value: Any, ours: str) -> None:
    assert getattr(check_settings({name: value}), name) == ours


@pytest.mark.parametrize("name", ["enforce_eager", "disable_cuda_graph"])
def test_switching_graphs_off_leaves_the_kernels(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="archerfish"):
        assert check_settings({name: True}) == EngineConfig()
        assert check_settings({name: True, "kernels": "amx"}).kernels == "amx"
    assert f"{name}: native and Triton kernels stay in use" in caplog.text and "kernels reference" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="archerfish"):
        assert check_settings({name: False}) == EngineConfig()
    assert not caplog.text


SHARED = {
    "tensor_parallel_size": 1,
    "enforce_eager": False,
    "disable_log_requests": True,
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
}


def test_files_and_variables_may_have_them_too(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(
        "".join(f"{name.replace('_', '-')} = {str(value).lower()}\n" for name, value in SHARED.items()).replace(
            "hermes", '"hermes"'
        )
    )
    variables = {f"ARCHERFISH_{name.upper()}": str(value) for name, value in SHARED.items()}
    for given in ((path, {}), (None, variables), (None, {"ARCHERFISH_TRUST_REMOTE_CODE": "1"})):
        notices: list[str] = []
        assert load_config(EngineConfig, {}, *given, notices.append) == EngineConfig()
        server = load_config(ServerConfig, {}, *given, notices.append)
        assert server.tool_call_format == (None if "ARCHERFISH_TRUST_REMOTE_CODE" in given[1] else "hermes")
        assert [notice.partition(":")[0] for notice in notices] == (
            ["trust_remote_code"] if "ARCHERFISH_TRUST_REMOTE_CODE" in given[1] else []
        ), "once, though two records are read"


@pytest.mark.parametrize(
    ("text", "variables", "says"),
    [
        ("tensor-parallel-size = 2", {}, "tensor_parallel_size = 2 in {path}: Archerfish runs a model on one device"),
        ("ssl-keyfile = 'k.pem'", {}, "ssl_keyfile = k.pem in {path}: use tls_key"),
        ("ctx-size = 4096", {}, "use max_model_len"),
        ("", {"TENSOR_PARALLEL_SIZE": "2"}, "ARCHERFISH_TENSOR_PARALLEL_SIZE=2: Archerfish runs"),
        ("", {"CTX_SIZE": "4096"}, "ARCHERFISH_CTX_SIZE=4096: use ARCHERFISH_MAX_MODEL_LEN"),
        (
            "tool_call_parser = 'hermes'\ntool-call-format = 'llama3'",
            {},
            "tool_call_parser = hermes in {path}: tool_call_format is the same and was given, too; leave one out",
        ),
    ],
)
def test_files_and_variables_say_what_to_use(tmp_path: Path, text: str, variables: dict[str, str], says: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    environ = {f"ARCHERFISH_{name}": value for name, value in variables.items()}
    for record in (EngineConfig, ServerConfig):
        with pytest.raises(ConfigError, match=re.escape(says.format(path=path))):
            load_config(record, {}, path, environ)


def test_what_is_accepted_and_changes_nothing_here_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="archerfish"):
        check_settings({"trust_remote_code": True, "served_model_name": "a"})
    assert "no code of a checkpoint is ever run" in caplog.text and "archerfish serve" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="archerfish"):
        check_settings({"trust_remote_code": False, "served_model_name": None})
    assert not caplog.text


def test_arguments_are_gathered_changed_and_read() -> None:
    args = EngineArgs("perch", max_model_len="1K", tensor_parallel_size=1)
    assert args.config() == EngineConfig(model="perch", max_model_len=1024)
    args.max_model_len = 512
    assert args.config().max_model_len == 512 and args.block_size == EngineConfig().block_size
    assert vars(args) == {"model": "perch", "max_model_len": 512, "tensor_parallel_size": 1}
    assert "max_model_len=512" in repr(args)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = args.nonsense
    args.tensor_parallel_size = 8
    with pytest.raises(ConfigError, match="one device"):
        LLM.from_engine_args(args)


def test_a_program_may_read_them_from_its_own_command_line() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    for own in ("--host", "--ssl-keyfile", "--temperature", "--n", "--prompt"):
        parser.add_argument(own)
    parser.set_defaults(model="perch")
    nothing = parser.parse_args([])
    assert AsyncEngineArgs.from_cli_args(nothing).config() == EngineConfig(model="perch")
    assert check_settings({name: value for name, value in vars(nothing).items() if name in OWN | set(FOREIGN)}) == (
        EngineConfig(model="perch")
    ), "flags that were not given may be passed on"
    arguments = [
        *("--max-model-len", "1K", "--no-enable-prefix-caching", "--hf-overrides", '{"a": 1}', "--host", "::1"),
        *("--tensor-parallel-size", "1", "--trust-remote-code", "--enforce-eager", "--swap-space", "4"),
    ]
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(arguments))
    assert isinstance(args, AsyncEngineArgs)
    assert args.config() == EngineConfig(
        model="perch", max_model_len=1024, enable_prefix_caching=False, hf_overrides={"a": 1}
    )
    with pytest.raises(ConfigError, match="one device"):
        EngineArgs.from_cli_args(parser.parse_args(["--tensor-parallel-size", "2"]))
    with pytest.raises(ConfigError, match="max_model_len: 'long' is not a whole number"):
        EngineArgs.from_cli_args(parser.parse_args(["--max-model-len", "long"]))
    text = parser.format_help()
    assert "--max-num-seqs VALUE" in text and "tensor-parallel" not in text
