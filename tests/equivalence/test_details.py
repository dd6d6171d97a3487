"""Equivalence where one model of a family is not enough: lengths that change the rotation, old configs, wrappers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from archerfish import LLM, SamplingParams
from archerfish.arch.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.arch.rope import RopeSpec
from archerfish.models.decoder import Decoder
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from archerfish.ops.reference.drawing import draw
from archerfish.sampling.sampler import Sampler
from archerfish.weights.load import load_weights, random_weights
from tests.equivalence.cases import VOCAB_SIZE, Case, Reference, reference
from tests.execution.executors import local_executor

OPS, _ = choose_ops(KernelTarget(device="cpu", dtype="float32"))


def save(model: Any, directory: Path, **more: Any) -> Path:
    model.save_pretrained(directory, **more)
    return directory


def make(case: Case) -> Any:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(case.config(), attn_implementation="eager").float().eval()


def prompt_of(length: int) -> list[int]:
    return torch.randint(3, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def engine(directory: Path, **settings: Any) -> LLM:
    return LLM(str(directory), skip_tokenizer_init=True, threads=1, max_num_seqs=4, check_invariants=True, **settings)


def last_logprobs(llm: LLM, prompt: list[int]) -> Tensor:
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=VOCAB_SIZE)
    logprobs = llm.generate(prompt, params)[0].outputs[0].logprobs
    assert logprobs is not None
    return torch.tensor([logprobs[0][token].logprob for token in range(VOCAB_SIZE)])


def expected_logprobs(model: Any, prompt: list[int]) -> Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1].float(), dim=-1)


class PlainAttention:
    """Dense causal attention over one whole sequence, as a training loop would give it to the decoder."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        spec = self._arch.layers[layer].attention
        if k is None or v is None:
            assert spec.kv_source is not None
            k, v = self._made[spec.kv_source]
        self._made[layer] = (k, v)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale, enable_gqa=True).transpose(
            0, 1
        )


def test_the_decoder_serves_a_plain_attention_too(checkpoint_root: Path) -> None:
    family: Reference = reference("llama-mqa-wide-heads", checkpoint_root)
    config = json.loads((family.directory / "config.json").read_text())
    found = find_family(config)
    arch = found.read(Fields(config))
    model = Decoder(arch, OPS, 128)
    load_weights(model, found, family.directory, lambda _: None)
    for prompt, logits in zip(family.prompts, family.logits, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor(prompt), torch.arange(len(prompt)), PlainAttention(arch))
            torch.testing.assert_close(model.logits(hidden), logits, atol=1e-4, rtol=0)


def test_layers_that_share_keys_and_values_agree_with_dense_attention() -> None:
    """No published family of ours shares them, so the dense path over the same weights is the judge."""
    rope = RopeSpec(theta=10000.0, dim=16)

    def layer(source: int | None) -> LayerSpec:
        attention = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, rope=rope, kv_source=source)
        return LayerSpec(attention=attention, feed_forward=MlpSpec(size=64))

    sources = (None, 0, None, 2, 2)
    arch = Arch(
        family="shared",
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        layers=tuple(layer(source) for source in sources),
        norm=NormSpec(),
        max_positions=64,
    )
    model = Decoder(arch, OPS, 64).requires_grad_(False)
    random_weights(model, seed=3)
    tokens = prompt_of(41)
    expected = model.logits(model(torch.tensor(tokens), torch.arange(41), PlainAttention(arch)))

    from archerfish.execution.backends.eager import EagerModel
    from archerfish.execution.step.rows import Rows
    from archerfish.kvcache.layout import kv_layout
    from archerfish.kvcache.pool import BlockId
    from archerfish.kvcache.storage import KVStorage
    from archerfish.scheduling.plan import Chunk, Plan, SequenceStart

    layout = kv_layout(arch)
    assert layout.num_slots == 2, "only layers that make their own keys and values take room"
    storage = KVStorage(layout, 8, 8, torch.float32, "cpu", OPS)
    rows = Rows(1, 64, len(storage.layout.windows), storage.block_size)
    executor = local_executor(EagerModel(model, storage), storage, rows, Sampler(len(rows.tokens), draw))
    params = SamplingParams(temperature=0.0, prompt_logprobs=VOCAB_SIZE)
    start = SequenceStart(
        row=0, tokens=tuple(tokens), num_prompt_tokens=41, blocks=((),), params=params, seed=0, stop_token_ids=()
    )
    blocks = tuple(BlockId(block) for block in (5, 1, 7, 0, 2, 6))
    first = executor.run(Plan(1, [start], [], [Chunk(0, 0, 19, False, (blocks[:3],))]))
    second = executor.run(Plan(2, [], [], [Chunk(0, 19, 22, True, (blocks[3:],))]))
    entries = first.prompt_logprobs[0] + second.prompt_logprobs[0]
    for row, entry in zip(torch.log_softmax(expected, -1)[:-1], entries, strict=True):
        torch.testing.assert_close(torch.tensor([value for _, value in sorted(entry.top)]), row, atol=1e-4, rtol=0)
    assert second.tokens == [[int(expected[-1].argmax())]]


def test_dynamic_rotation_follows_the_longest_context(tmp_path: Path) -> None:
    """transformers stretches by the prompt's length; we by max_model_len, so they agree where the two are equal."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = make(Case("dynamic", "LlamaConfig", {"max_position_embeddings": 32, "rope_parameters": rope}))
    directory = save(model, tmp_path / "dynamic")
    prompt = prompt_of(63)
    llm = engine(directory, max_model_len=64)
    stretched = make(Case("dynamic", "LlamaConfig", {"max_position_embeddings": 32, "rope_parameters": rope}))
    stretched(torch.tensor([prompt_of(64)]))  # The frequencies of 64 positions stay while prompts are no shorter.
    torch.testing.assert_close(last_logprobs(llm, prompt), expected_logprobs(stretched, prompt), atol=1e-4, rtol=0)
    plain = engine(directory, max_model_len=32)
    prompt = prompt_of(31)
    torch.testing.assert_close(last_logprobs(plain, prompt), expected_logprobs(model, prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("max_model_len", "prompt_length"), [(32, 31), (128, 100)], ids=["short", "long"])
def test_longrope_switches_with_the_longest_context(tmp_path: Path, max_model_len: int, prompt_length: int) -> None:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 32, "sliding_window": None}
    model = make(Case("longrope", "Phi3Config", changes))
    llm = engine(save(model, tmp_path / "longrope"), max_model_len=max_model_len)
    prompt = prompt_of(prompt_length)
    torch.testing.assert_close(last_logprobs(llm, prompt), expected_logprobs(model, prompt), atol=1e-4, rtol=0)


def test_configs_of_older_transformers_mean_the_same(tmp_path: Path, checkpoint_root: Path) -> None:
    family: Reference = reference("llama-rope-llama3", checkpoint_root)
    directory = tmp_path / "old"
    shutil.copytree(family.directory, directory)
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {**rope, "type": rope["rope_type"]}
    config["torch_dtype"] = config.pop("dtype")
    (directory / "config.json").write_text(json.dumps(config))
    llm = engine(directory)
    expected = torch.log_softmax(family.logits[3][-1], -1)
    torch.testing.assert_close(last_logprobs(llm, family.prompts[3]), expected, atol=1e-4, rtol=0)


def test_the_language_model_inside_a_multimodal_gemma3_is_served(tmp_path: Path) -> None:
    case = Case("gemma3", "Gemma3TextConfig", {"num_hidden_layers": 7, "head_dim": 16, "sliding_window": 40})
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=case.config().to_dict(), vision_config=vision, mm_tokens_per_image=4, image_token_index=5
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).float().eval()
    llm = engine(save(model, tmp_path / "multimodal"))
    prompt = [token for token in prompt_of(60) if token != 5]
    torch.testing.assert_close(last_logprobs(llm, prompt), expected_logprobs(model, prompt), atol=1e-4, rtol=0)


def test_sharded_checkpoints_load_like_whole_ones(tmp_path: Path) -> None:
    model = make(Case("qwen3", "Qwen3Config", {"head_dim": 16}))
    directory = save(model, tmp_path / "sharded", max_shard_size="40KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    prompt = prompt_of(40)
    found = last_logprobs(engine(directory), prompt)
    torch.testing.assert_close(found, expected_logprobs(model, prompt), atol=1e-4, rtol=0)


def test_bfloat16_stays_close_to_float32(checkpoint_root: Path) -> None:
    """Eight bits of mantissa: near, not equal. A wrong layer would be far off."""
    family: Reference = reference("qwen3", checkpoint_root)
    llm = engine(family.directory, dtype="bfloat16", max_num_batched_tokens=37)
    for prompt, logits in zip(family.prompts, family.logits, strict=True):
        expected = torch.softmax(logits[-1], -1)
        assert float((torch.exp(last_logprobs(llm, prompt)) - expected).abs().sum()) < 0.2
