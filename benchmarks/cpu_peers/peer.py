"""Times one peer on one checkpoint and prints a JSON object. Runs in the peers' environment, not in ours.

python peer.py llamacpp|openvino CHECKPOINT --bits 8|4 [--many]
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PROMPT_TOKENS, DECODED = 512, 48
NUM_REQUESTS, REQUEST_INPUT, REQUEST_OUTPUT = 8, 256, 128
REPEATS, MANY_REPEATS = 3, 1
THREADS = 2

Ids = list[int]


def random_ids(seed: int, count: int) -> Ids:
    return np.random.default_rng(seed).integers(10, 1000, count).tolist()


def best_of(runs: int, work: Callable[[], None]) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def time_one(step: Callable[[Ids], None], reset: Callable[[], None]) -> dict[str, float]:
    """step(ids) extends the context by them; reset() empties it. Best of three."""
    prompt = random_ids(0, PROMPT_TOKENS)
    step(prompt[:32])

    def prefill() -> None:
        reset()
        step(prompt)

    prefill_seconds = best_of(REPEATS, prefill)

    def decode() -> None:
        for token in prompt[:DECODED]:
            step([token])

    return {"prefill": PROMPT_TOKENS / prefill_seconds, "decode": DECODED / best_of(REPEATS, decode)}


def many_requests() -> list[Ids]:
    return [random_ids(seed, REQUEST_INPUT) for seed in range(NUM_REQUESTS)]


# -- llama.cpp --------------------------------------------------------------------------------------------------------


class LlamaCpp:
    def __init__(self, checkpoint: Path, bits: int) -> None:
        import llama_cpp
        from gguf_file import write_gguf

        self.library = llama_cpp
        llama_cpp.llama_backend_init()
        path = str(write_gguf(checkpoint, bits)).encode()
        self.model = llama_cpp.llama_model_load_from_file(path, llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 4096, 2048, 512, NUM_REQUESTS
        params.n_threads = params.n_threads_batch = THREADS
        params.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)

    def reset(self) -> None:
        self.library.llama_memory_clear(self.library.llama_get_memory(self.context), True)

    def step(self, ids: Ids) -> None:
        tokens = (self.library.llama_token * len(ids))(*ids)  # Must outlive the call below.
        self._decode(self.library.llama_batch_get_one(tokens, len(ids)))

    def one(self) -> dict[str, float]:
        return time_one(self.step, self.reset)

    def many(self) -> dict[str, float]:
        """Eight slots: prompts in full batches, then one token of each request a step."""
        return {"many": NUM_REQUESTS * REQUEST_OUTPUT / best_of(MANY_REPEATS, self._answer_all)}

    def _answer_all(self) -> None:
        self.reset()
        self._decode(self._batch([(ids, 0) for ids in many_requests()]))
        following = [self._likeliest(place) for place in range(NUM_REQUESTS)]
        for written in range(1, REQUEST_OUTPUT):
            self._decode(self._batch([([token], REQUEST_INPUT + written - 1) for token in following]))
            following = [self._likeliest(place) for place in range(NUM_REQUESTS)]

    def _batch(self, pieces: list[tuple[Ids, int]]) -> Any:
        batch = self.library.llama_batch_init(sum(len(ids) for ids, _ in pieces), 0, 1)
        for sequence, (ids, start) in enumerate(pieces):
            for place, token in enumerate(ids):
                i = batch.n_tokens
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, start + place, 1
                batch.seq_id[i][0], batch.logits[i] = sequence, place == len(ids) - 1
                batch.n_tokens += 1
        return batch

    def _decode(self, batch: Any) -> None:
        assert self.library.llama_decode(self.context, batch) == 0
        self.library.llama_synchronize(self.context)

    def _likeliest(self, place: int) -> int:
        """Of the place-th row that has logits."""
        size = self.library.llama_vocab_n_tokens(self.library.llama_model_get_vocab(self.model))
        rows = self.library.llama_get_logits(self.context)
        return int(np.ctypeslib.as_array(rows, shape=((place + 1) * size,))[place * size :].argmax())


# -- OpenVINO ---------------------------------------------------------------------------------------------------------


class OpenVino:
    def __init__(self, checkpoint: Path, bits: int) -> None:
        self.exported = _export(checkpoint, bits)
        self._past = 0

    def one(self) -> dict[str, float]:
        import openvino

        core = openvino.Core()
        compiled = core.compile_model(
            core.read_model(self.exported / "openvino_model.xml"),
            "CPU",
            {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY"},
        )
        request = compiled.create_infer_request()
        wanted = {one.get_any_name() for one in compiled.inputs}

        def step(ids: Ids) -> None:
            past, count = self._past, len(ids)
            fed = {
                "input_ids": np.array([ids], np.int64),
                "attention_mask": np.ones((1, past + count), np.int64),
                "position_ids": np.arange(past, past + count, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            request.infer({name: value for name, value in fed.items() if name in wanted})
            self._past = past + count

        def reset() -> None:
            request.reset_state()
            self._past = 0

        return time_one(step, reset)

    def many(self) -> dict[str, float]:
        """By its own continuous batching."""
        import openvino
        import openvino_genai as genai

        schedule = genai.SchedulerConfig()
        schedule.cache_size, schedule.max_num_seqs, schedule.max_num_batched_tokens = 2, NUM_REQUESTS, 2048
        schedule.enable_prefix_caching = False
        pipeline = genai.ContinuousBatchingPipeline(
            str(self.exported), schedule, "CPU", {"INFERENCE_NUM_THREADS": THREADS}
        )
        asked = genai.GenerationConfig(max_new_tokens=REQUEST_OUTPUT, ignore_eos=True, do_sample=False)
        prompts = [openvino.Tensor(np.array([ids], np.int64)) for ids in many_requests()]

        def answer_all() -> None:
            results = pipeline.generate(prompts, [asked] * NUM_REQUESTS)
            assert all(len(result.m_generation_ids[0]) == REQUEST_OUTPUT for result in results)

        return {"many": NUM_REQUESTS * REQUEST_OUTPUT / best_of(MANY_REPEATS, answer_all)}


def _export(checkpoint: Path, bits: int) -> Path:
    exported = checkpoint.with_name(f"{checkpoint.name}-ov{bits}")
    if not (exported / "openvino_tokenizer.xml").exists():
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        width = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
        group = next(size for size in (128, 64, 32) if width % size == 0) if bits == 4 else -1
        rounding = OVWeightQuantizationConfig(bits=bits, sym=True, group_size=group, ratio=1.0)
        model = OVModelForCausalLM.from_pretrained(checkpoint, export=True, quantization_config=rounding)
        model.save_pretrained(exported)
        _write_tokenizer(exported)
    return exported


def _write_tokenizer(folder: Path) -> None:
    """A placeholder that its pipeline wants to see: timing needs ids, not text."""
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.BPE({f"{chr(97 + i)}": i for i in range(26)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer, detokenizer = convert_tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="b"), with_detokenizer=True
    )
    openvino.save_model(tokenizer, folder / "openvino_tokenizer.xml")
    openvino.save_model(detokenizer, folder / "openvino_detokenizer.xml")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=["llamacpp", "openvino"])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--bits", type=int, choices=[8, 4], required=True)
    parser.add_argument("--many", action="store_true", help="eight requests at once instead of one")
    asked = parser.parse_args()
    peer = {"llamacpp": LlamaCpp, "openvino": OpenVino}[asked.peer](asked.checkpoint, asked.bits)
    print(json.dumps(peer.many() if asked.many else peer.one()))


if __name__ == "__main__":
    main()
