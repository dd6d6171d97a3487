"""What a step really takes beside weights and cache, against what memory sizing sets aside for it."""

import json
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from archerfish import LLM
from archerfish.config import EngineConfig
from archerfish.config.resolve import ResolveFacts, resolve
from archerfish.execution.backends.eager import EagerModel
from archerfish.execution.memory import MemoryBudget
from archerfish.execution.step.rows import Rows
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.storage import KVStorage
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops
from archerfish.ops.reference.drawing import draw
from archerfish.request import SamplingParams
from archerfish.sampling.sampler import Sampler
from archerfish.scheduling.plan import Chunk, Plan, SequenceStart
from tests.checkpoints import CONFIG
from tests.execution.archs import EXPERTS, FULL
from tests.execution.executors import local_executor
from tests.ops.cpu.native import needs_native

DTYPE = torch.bfloat16
BLOCK_SIZE = 16
MAX_MODEL_LEN = 512
SLACK = 2**18  # Tables, indices and the like.

LONG_VOCABULARY = replace(FULL, vocab_size=8000)
FILTERED = SamplingParams(temperature=0.8, top_p=0.9, top_k=100, min_p=0.01)
EVERYTHING = replace(
    FILTERED, repetition_penalty=1.1, logprobs=3, logit_bias={1: 2.0}, allowed_token_ids=tuple(range(4000))
)


def peak_bytes(arch, sizes, params):
    """Most memory alive at once while a plan of such chunks (start, length) runs."""
    ops, _ = choose_ops(KernelTarget(device="cpu", dtype="bfloat16"))
    model = Decoder(arch, ops, MAX_MODEL_LEN).to(DTYPE).requires_grad_(False)
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(0))
    num_blocks = sum(-(-sum(size) // BLOCK_SIZE) for size in sizes)
    storage = KVStorage(kv_layout(arch), num_blocks, BLOCK_SIZE, DTYPE, "cpu", ops)
    executor = local_executor(
        EagerModel(model, storage),
        storage,
        Rows(len(sizes), MAX_MODEL_LEN, len(storage.layout.windows), storage.block_size),
        Sampler(len(sizes), draw),
    )
    free = iter(range(num_blocks))
    plan = Plan(0, [], [], [])
    for row, (start, length) in enumerate(sizes):
        blocks = tuple(next(free) for _ in range(-(-(start + length) // BLOCK_SIZE)))
        tokens = tuple(position % 60 for position in range(start + length))
        plan.starts.append(
            SequenceStart(
                row=row,
                tokens=tokens,
                num_prompt_tokens=len(tokens),
                blocks=(blocks,),
                params=params,
                seed=row,
                stop_token_ids=(),
            )
        )
        plan.chunks.append(Chunk(row, start, length, True))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        executor.run(plan)
    live = peak = 0
    changes = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(
    ("arch", "sizes", "params"),
    [
        (FULL, [(0, 512)], SamplingParams(temperature=0.0)),
        (FULL, [(0, 256)] * 2, SamplingParams(temperature=0.0)),
        (FULL, [(256, 256)] * 2, SamplingParams(temperature=0.0)),
        (FULL, [(0, 64)] * 8, SamplingParams(temperature=0.0)),
        (EXPERTS, [(0, 512)], SamplingParams(temperature=0.0)),
        (LONG_VOCABULARY, [(100, 1)] * 64, SamplingParams(temperature=0.0)),
        (LONG_VOCABULARY, [(100, 1)] * 64, SamplingParams(temperature=0.8)),
        (LONG_VOCABULARY, [(100, 1)] * 64, FILTERED),
        (LONG_VOCABULARY, [(100, 1)] * 64, EVERYTHING),
        (LONG_VOCABULARY, [(0, 256)] * 2, SamplingParams(temperature=0.0, prompt_logprobs=1)),
    ],
    ids=[
        "one prompt",
        "two prompts",
        "two late pieces",
        "eight prompts",
        "experts",
        "greedy",
        "random",
        "filtered",
        "everything",
        "prompt logprobs",
    ],
)
def test_a_step_takes_no_more_than_was_set_aside(arch, sizes, params):
    settings = EngineConfig(
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=len(sizes),
        max_num_batched_tokens=sum(length for _, length in sizes),
        device="cpu",
        dtype="bfloat16",
    )
    facts = ResolveFacts(
        max_positions=4096, checkpoint_dtype=None, can_extend=False, has_cuda=False, num_cores=1, num_parameters=1
    )
    set_aside = MemoryBudget(arch, kv_layout(arch), 2**40, DTYPE.itemsize).activations(resolve(settings, facts))
    assert peak_bytes(arch, sizes, params) <= set_aside + SLACK


@needs_native
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize(("hidden_size", "size"), [(512, 32), (64, 512)])
def test_recorded_experts_take_no_more_than_was_set_aside(tmp_path, quantization, hidden_size, size):
    """With so few heads that attention does not hide what experts need."""
    file = tmp_path / "config.json"
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": None}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 8, "hidden_size": hidden_size, "intermediate_size": size}
    file.write_text(json.dumps({**CONFIG, "model_type": "mixtral", **heads, **experts, "torch_dtype": "bfloat16"}))
    with LLM(file, load_format="dummy", quantization=quantization, device="cpu", threads=1, max_num_seqs=2) as llm:
        arch, config = llm.assembly.arch, llm.assembly.config
        set_aside = MemoryBudget(arch, kv_layout(arch), 2**40, 2, bytes_per_activation=4).activations(config)
        arena = llm.assembly.executor._model._forward._program.referenced[0]
    assert 8 * (2 * size + hidden_size) * config.max_num_batched_tokens < arena.nbytes <= set_aside + SLACK
