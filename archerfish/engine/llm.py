"""The offline face of the engine: a model in this process, used from Python."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from archerfish.checks import check_int
from archerfish.config.engine_args import EngineArgs
from archerfish.config.load import check_settings
from archerfish.console import enable_logging, progress_bar
from archerfish.engine.beam_search import BeamSearch, BeamSearchOutput
from archerfish.engine.elsewhere import NOT_IN_LLM, refuse_unsupported
from archerfish.engine.intake import Message, Prompt
from archerfish.engine.interrupts import uninterrupted
from archerfish.engine.outputs import Collector, RequestOutput, StreamOutput
from archerfish.engine.pooling import (
    WHY_NOT_CLASSIFIED,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
    as_pooling_params,
    embedded,
    paired,
    pooled,
    scored,
    settle_task,
)
from archerfish.engine.prompts import (
    PromptType,
    as_conversations,
    as_many,
    as_prompt,
    as_prompts,
    naming,
    one_of,
)
from archerfish.errors import InvalidParameter, StepFailed, TokenizerError, UnsupportedModel
from archerfish.garbage import out_of_the_collectors_sight
from archerfish.machine import wake_gpu
from archerfish.request import FinishReason, Request, RequestClass, SamplingParams
from archerfish.sampling_params import BeamSearchParams
from archerfish.tokenizer.public import PublicTokenizer

if TYPE_CHECKING:
    from archerfish.engine.build import Assembly

_MOST_AT_ONCE = 2**31 - 1

Progress = bool | Callable[..., Any]
"""Whether to show a bar, or a function that makes one."""


class LLM:
    """A model that answers prompts, many at once.

        llm = LLM()  # The model in the box; or a directory, or a hub name: LLM("Qwen/Qwen3-0.6B").
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(temperature=0, max_tokens=32)):
            print(output.outputs[0].text)

    Settings are those of the command line with underscores: LLM(model, max_model_len=4096). Methods and their
    arguments are those of vLLM's class, so `params` is also called `sampling_params`, and `progress` is `use_tqdm`.
    Not for use from several threads at once.
    """

    def __init__(self, model: str | PathLike[str] | None = None, **settings: Any) -> None:
        config = check_settings({"model": model, **settings})
        enable_logging()
        if config.device != "cpu":
            wake_gpu()
        # It brings torch, which a GPU need not wait for.
        with out_of_the_collectors_sight("archerfish.engine.build"):
            from archerfish.engine.build import build

        self._assembly = build(config)
        self._engine = self._assembly.engine
        self._intake = self._assembly.intake
        self._open: dict[str, _Open] = {}
        self._num_requests = 0

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLM":
        """A model with settings that were gathered before."""
        return cls(**vars(engine_args))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(NOT_IN_LLM.get(name, f"LLM has no attribute {name!r}"))

    # -- answers --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] | None = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str | Sequence[str] = "",
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Answer every prompt, text or token ids; outputs come in the prompts' order.

        `request_class` is "online" or "batch"; requests of a lower `priority` go first within their class; requests
        share cached prefixes only with those of the same `cache_salt`. `progress` may also be a function that makes a
        bar, and takes tqdm's arguments.

        A prompt that cannot be served raises before any is started. A request that fails on the way has finish_reason
        "error" and does not disturb the others; if the engine itself fails, StepFailed says why.
        """
        refuse_unsupported("generate", unsupported)
        listed = as_prompts(prompts)
        settings = zip(
            self._chosen_params(params, sampling_params, len(listed)),
            as_many(0 if priority is None else priority, len(listed), "priority"),
            as_many(cache_salt, len(listed), "cache_salt"),
            strict=True,
        )
        requests = []
        for number, (prompt, (one, rank, salt)) in enumerate(zip(listed, settings, strict=True), 1):
            with naming(number if len(listed) > 1 else None):
                own_salt = salt if prompt.cache_salt is None else prompt.cache_salt
                options = {"request_class": request_class, "priority": rank, "cache_salt": own_salt}
                requests.append(self._request(prompt.content, one, **options))
        return self._run(requests, [prompt.text for prompt in listed], _shown(progress, use_tqdm))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress | None = None,
        *,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_variables: Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str = "",
        progress: Progress | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation, or each of several.

        `chat_template` is the text of a template to use instead of the model's own; `template_variables` (in vLLM
        `chat_template_kwargs`) are what the template knows apart from messages and tools.
        """
        refuse_unsupported("chat", unsupported)
        if chat_template_content_format != "auto":
            allowed = "content is given to a template in the form that it understands; leave it out"
            raise InvalidParameter("chat_template_content_format", chat_template_content_format, allowed)
        conversations = as_conversations(messages)
        chosen = self._chosen_params(params, sampling_params, len(conversations))
        names = ("template_variables", "chat_template_kwargs")
        variables = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            **(one_of(template_variables, chat_template_kwargs, names) or {}),
        }
        intake = self._intake
        lay_out = intake.chat_text if chat_template is None else partial(intake.chat_text_by, chat_template)
        texts = [lay_out(conversation, **variables) for conversation in conversations]
        # The template has already written the special tokens.
        options: dict[str, Any] = {"request_class": request_class, "priority": priority, "cache_salt": cache_salt}
        requests = [
            self._request(text, one, add_special_tokens=False, **options)
            for text, one in zip(texts, chosen, strict=True)
        ]
        return self._run(requests, list(texts), _shown(progress, use_tqdm))

    def stream(
        self,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        sampling_params: SamplingParams | None = None,
        priority: int = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str = "",
    ) -> Iterator[StreamOutput]:
        """Yield what each step adds, as it comes. Leaving the loop early cancels the request."""
        given = as_prompt(prompt)
        [chosen] = self._chosen_params(params, sampling_params, 1)
        salt = cache_salt if given.cache_salt is None else given.cache_salt
        options: dict[str, Any] = {"request_class": request_class, "priority": priority, "cache_salt": salt}
        return self._stream(self._request(given.content, chosen, **options), given.text)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[StreamOutput]:
        """The same for a conversation."""
        [chosen] = self._chosen_params(params, None, 1)
        text = self._intake.chat_text(messages)
        return self._stream(self._request(text, chosen, add_special_tokens=False), text)

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: None = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` likeliest answers to each prompt that a search of that width finds, the best first.

        With `concurrency_limit` so many prompts are searched at once, instead of all.
        """
        refuse_unsupported("beam_search", {"lora_request": lora_request})
        if not isinstance(params, BeamSearchParams):
            raise InvalidParameter("params", params, "they must be BeamSearchParams")
        listed = [self._intake.token_ids(prompt.content) for prompt in as_prompts(prompts)]
        for token_ids in listed:
            self._intake.check_length(token_ids)
        at_once = max(1, len(listed)) if concurrency_limit is None else concurrency_limit
        check_int("concurrency_limit", at_once, 1, _MOST_AT_ONCE)
        assembly = self._assembly
        eos_token_ids = assembly.engine.scheduler.limits.eos_token_ids
        search = BeamSearch(
            params, self._run_token_ids, eos_token_ids, assembly.arch.vocab_size, assembly.config.max_model_len
        )
        found: list[BeamSearchOutput] = []
        for first in range(0, len(listed), at_once):
            with progress_bar("searching", params.max_tokens, use_tqdm) as bar:
                found += search.search(listed[first : first + at_once], bar.update)
        tokenizer = self._intake.tokenizer
        for sequence in (sequence for output in found for sequence in output.sequences):
            sequence.text = None if tokenizer is None else tokenizer.decode(sequence.tokens)
        return found

    # -- what a model makes of prompts ----------------------------------------------------------------------------

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType],
        pooling_params: PoolingParams | None = None,
        *,
        pooling_task: str | None = None,
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """For each prompt, by task: "embed" gives the mean of the last layer's states, "token_embed" the states."""
        refuse_unsupported("encode", unsupported)
        chosen = as_pooling_params(pooling_params)
        params = chosen.sampling_params(settle_task(pooling_task, chosen))
        return [
            pooled(output, chosen) for output in self.generate(prompts, params, progress=_shown(progress, use_tqdm))
        ]

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType],
        *,
        pooling_params: PoolingParams | None = None,
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[EmbeddingRequestOutput]:
        """For each prompt the mean of the last layer's states over its tokens, as output.outputs.embedding."""
        shown = _shown(progress, use_tqdm)
        outputs = self.encode(prompts, pooling_params, pooling_task="embed", progress=shown, **unsupported)
        return [embedded(output) for output in outputs]

    def score(
        self,
        data_1: PromptType | Sequence[PromptType],
        data_2: PromptType | Sequence[PromptType],
        /,
        *,
        pooling_params: PoolingParams | None = None,
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[ScoringRequestOutput]:
        """How similar texts are, by the cosine of their embeddings: one with each of several, or pair by pair."""
        first, second = as_prompts(data_1), as_prompts(data_2)
        pairs = paired(first, second)
        shown = _shown(progress, use_tqdm)
        prompts = [prompt.content for prompt in (*first, *second)]
        found = self.embed(prompts, pooling_params=pooling_params, progress=shown, **unsupported)
        return [scored(found[one], found[len(first) + other]) for one, other in pairs]

    def classify(self, prompts: PromptType | Sequence[PromptType], **_: Any) -> NoReturn:
        """Refused: no model here has a classification head."""
        raise UnsupportedModel(f"{self._assembly.directory.name} cannot classify: {WHY_NOT_CLASSIFIED}")

    # -- the model ------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> PublicTokenizer:
        """The model's tokenizer, with the methods that users of transformers know."""
        tokenizer = self._intake.tokenizer
        if tokenizer is None:
            raise TokenizerError("no tokenizer was loaded: prompts and answers are token ids")
        return PublicTokenizer(tokenizer, str(self._assembly.tokenizer_directory))

    def default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends."""
        return SamplingParams.from_dict(self._assembly.recommended)

    def get_default_sampling_params(self) -> SamplingParams:
        """The same under vLLM's name: a copy, which may be changed."""
        return self.default_sampling_params()

    def reset_prefix_cache(self) -> bool:
        """Forget what earlier prompts left in the KV cache. False if requests are running: theirs is kept."""
        pool = self._engine.scheduler.tables.pool
        pool.drop_cached()
        return pool.num_in_use == 0

    @property
    def assembly(self) -> "Assembly":
        """The engine and its parts, for measuring and inspection."""
        return self._assembly

    def close(self) -> None:
        """Free the model and its cache."""
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running --------------------------------------------------------------------------------------------------

    def _chosen_params(self, params: object, sampling_params: object, count: int) -> list[SamplingParams]:
        """One for each prompt: those that were given under either name, else what the model recommends."""
        given = one_of(params, sampling_params, ("params", "sampling_params"))
        return as_many(self.default_sampling_params() if given is None else given, count, "params")

    def _run_token_ids(self, prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
        return self._run([self._request(prompt, params) for prompt in prompts], [None] * len(prompts), progress=False)

    def _request(self, prompt: Prompt, params: SamplingParams, **more: Any) -> Request:
        self._num_requests += 1
        return self._intake.request(prompt, params, external_id=str(self._num_requests - 1), **more)

    def _start(self, request: Request, prompt: str | None, *, streams: bool = False) -> "_Open":
        with uninterrupted():
            self._engine.add(request)
            collector = Collector(request, prompt, self._intake.tokenizer, self._stop_sequence)
            one = self._open[request.request_id] = _Open(collector, deque() if streams else None)
            return one

    def _run(self, requests: list[Request], prompts: list[str | None], progress: Progress) -> list[RequestOutput]:
        started, generated_before = self._engine.clock(), self._engine.counts.num_generated_tokens
        opened: list[_Open] = []
        try:
            for request, prompt in zip(requests, prompts, strict=True):
                opened.append(self._start(request, prompt))
            unfinished = {request.request_id for request in requests}
            with progress_bar("answering", len(opened), progress) as bar:
                while unfinished:
                    unfinished.difference_update(self._step())
                    generated = self._engine.counts.num_generated_tokens - generated_before
                    rate = generated / max(self._engine.clock() - started, 1e-9)
                    bar.update(len(opened) - len(unfinished), f"{rate:,.0f} tokens/s")
        finally:
            # An error or an interrupt must not leave half-written answers running.
            for request in requests:
                self._close(request.request_id)
        return [one.collector.output for one in opened]

    def _stream(self, request: Request, prompt: str | None) -> Iterator[StreamOutput]:
        if request.best is not None:
            allowed = "answers are compared when all of them are complete; use generate"
            raise InvalidParameter("best_of", request.params.n, allowed)
        one = self._start(request, prompt, streams=True)
        try:
            while one.pieces or not one.collector.finished:
                if one.pieces:
                    yield one.pieces.popleft()
                else:
                    self._step()
        finally:
            self._close(request.request_id)

    def _step(self) -> list[str]:
        """One step for everyone: pieces of other open streams wait for their readers. The requests that ended."""
        ended = []
        with uninterrupted():
            events = self._engine.step()
            now = self._engine.clock()
            for event in events:
                one = self._open.get(event.request_id)
                piece = one.collector.add(event, now) if one is not None else None
                if one is None:
                    continue
                if one.pieces is not None and piece is not None:
                    one.pieces.append(piece)
                if one.collector.finished:
                    ended.append(event.request_id)
        if self._engine.stopped is not None:
            raise StepFailed(self._engine.stopped)
        return ended

    def _stop_sequence(self, request_id: str, index: int) -> None:
        self._engine.cancel(request_id, index, FinishReason.STOP)

    def _close(self, request_id: str) -> None:
        with uninterrupted():
            self._open.pop(request_id, None)
            self._engine.cancel(request_id)
            if not self._open:
                # Nobody may step again for long: what is in flight is then for nobody, and holds its blocks.
                self._engine.settle()


class _Open(NamedTuple):
    collector: Collector
    pieces: deque[StreamOutput] | None
    """What steps added and no reader has taken yet; None where nobody reads. Kept for nothing, they were most of what
    Python's collector of garbage has to look at, again and again."""


def _shown(progress: Progress | None, use_tqdm: Progress | None) -> Progress:
    given: Progress | None = one_of(progress, use_tqdm, ("progress", "use_tqdm"))
    return True if given is None else given
