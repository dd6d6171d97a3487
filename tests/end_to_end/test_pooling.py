"""What a model makes of prompts: how embeddings are truncated, cut and scaled, from Python as over HTTP."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from archerfish import LLM, AsyncEngineArgs, AsyncLLM, PoolingParams
from archerfish.errors import InvalidParameter
from tests.checkpoints import write_checkpoint

TEXT = "The quick brown fox jumps over the lazy dog. "
SETTINGS: dict[str, Any] = {"threads": 1, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained to have its embeddings cut."""
    made = write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [8, 16]}))
    return made


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), **SETTINGS) as llm:
        yield llm


def test_prompts_are_truncated_by_the_method_or_by_the_parameters(llm: LLM) -> None:
    [short] = llm.encode(TEXT, pooling_task="embed", truncate_prompt_tokens=3)
    assert len(short.prompt_token_ids) == 3
    [embedding] = llm.embed(TEXT, truncate_prompt_tokens=3)
    assert embedding.outputs.embedding == pytest.approx(short.outputs.data.tolist())
    assert embedding.prompt_token_ids == short.prompt_token_ids
    [likeness] = llm.score(TEXT, "fox " + TEXT, truncate_prompt_tokens=3)
    assert likeness.outputs.score == pytest.approx(1.0), "both end with the same tokens"
    for options in ({"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": None}):
        assert len(llm.embed(TEXT, **options)[0].prompt_token_ids) > 3
    given = PoolingParams(truncate_prompt_tokens=3)
    assert len(llm.embed(TEXT, pooling_params=given, truncate_prompt_tokens=3)[0].prompt_token_ids) == 3
    with pytest.raises(InvalidParameter, match=r"truncate_prompt_tokens = 4 .*the pooling parameters say 3"):
        llm.embed(TEXT, pooling_params=given, truncate_prompt_tokens=4)
    with pytest.raises(InvalidParameter, match="truncate_prompt_tokens = 0"):
        llm.embed(TEXT, truncate_prompt_tokens=0)


def test_each_prompt_may_have_parameters_of_its_own(llm: LLM) -> None:
    params = [PoolingParams(task="embed", dimensions=8), PoolingParams(task="token_embed", truncate_prompt_tokens=2)]
    cut, states = llm.encode([TEXT, TEXT], params)
    assert cut.outputs.data.shape == (8,) and states.outputs.data.shape == (2, 32)
    with pytest.raises(InvalidParameter, match="there are 1 prompts"):
        llm.encode([TEXT], params)
    with pytest.raises(InvalidParameter, match="one or one for each prompt"):
        llm.encode([TEXT], [{"task": "embed"}])  # type: ignore[list-item]


def test_embeddings_are_cut_where_the_model_was_trained_for_it(llm: LLM) -> None:
    def embedded(**params: Any) -> torch.Tensor:
        return torch.tensor(llm.embed(TEXT, pooling_params=PoolingParams(**params))[0].outputs.embedding)

    whole = embedded()
    torch.testing.assert_close(embedded(dimensions=32), whole)
    torch.testing.assert_close(embedded(dimensions=8), whole[:8] / whole[:8].norm())
    torch.testing.assert_close(embedded(dimensions=8, use_activation=False), whole[:8])
    torch.testing.assert_close(embedded(normalize=True), whole / whole.norm())
    with pytest.raises(InvalidParameter, match=r"dimensions = 7 .*have 32 numbers, or 8, 16"):
        embedded(dimensions=7)
    for params, says in (({"dimensions": 0}, "at least 1"), ({"dimensions": 8, "task": "token_embed"}, "not cut")):
        with pytest.raises(InvalidParameter, match=says):
            PoolingParams(**params)  # type: ignore[arg-type]


def test_token_ids_may_have_an_argument_of_their_own(llm: LLM) -> None:
    [wanted] = llm.embed([[20, 21, 22]])
    [found] = llm.embed(prompt_token_ids=[20, 21, 22])
    assert found.prompt_token_ids == [20, 21, 22] and found.outputs == wanted.outputs
    assert len(llm.encode(prompt_token_ids=[[20], [21]], pooling_task="embed")) == 2


def test_a_model_that_was_not_trained_for_it_says_so_and_async_does_the_same(directory: Path) -> None:
    async def encode(engine: AsyncLLM, **options: Any) -> Any:
        [output] = [output async for output in engine.encode(TEXT, **options)]
        return output

    async def main() -> None:
        args = AsyncEngineArgs(str(directory), **SETTINGS, hf_overrides={"matryoshka_dimensions": None})
        async with AsyncLLM.from_engine_args(args) as engine:
            short = await encode(engine, pooling_task="embed", truncate_prompt_tokens=3)
            assert len(short.prompt_token_ids) == 3
            with pytest.raises(InvalidParameter, match="does not say that it was trained to have them cut"):
                await encode(engine, pooling_params=PoolingParams(task="embed", dimensions=8))

    asyncio.run(main())
