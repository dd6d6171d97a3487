"""The offline face of the engine: a model in this process, used from Python."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn

from archerfish.checks import check_int
from archerfish.config.engine_args import EngineArgs
from archerfish.config.load import check_settings
from archerfish.console import enable_logging, progress_bar
from archerfish.engine.beam_search import BeamSearch, BeamSearchOutput
from archerfish.engine.input_processor import Message, Prompt
from archerfish.engine.outputs import RequestOutput, StreamOutput
from archerfish.engine.pooling import (
    WHY_NOT_CLASSIFIED,
    EmbeddingRequestOutput,
    EmbeddingSizes,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
    as_pooling,
    embedded,
    paired,
    pooled,
    scored,
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
from archerfish.engine.request_runner import Progress, RequestRunner
from archerfish.engine.unsupported_features import refuse_unsupported, why_missing
from archerfish.errors import InvalidParameter, TokenizerError, UnsupportedModel
from archerfish.gc_freeze import import_frozen_from_gc
from archerfish.machine.gpu import wake_gpu
from archerfish.request import Request, RequestClass, SamplingParams
from archerfish.sampling_params import BeamSearchParams
from archerfish.tokenizer.public import PublicTokenizer

if TYPE_CHECKING:
    from archerfish.engine.build import Assembly

_MOST_AT_ONCE = 2**31 - 1


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
        enable_logging()
        config = check_settings({"model": model, **settings})
        if config.device != "cpu":
            wake_gpu()
        # It brings torch, which a GPU need not wait for.
        with import_frozen_from_gc("archerfish.engine.build"):
            from archerfish.engine.build import build

        self._assembly = build(config)
        self._engine = self._assembly.engine
        self._processor = self._assembly.processor
        self._runner = RequestRunner(self._engine, self._processor.tokenizer)
        self._num_requests = 0
        self._public_tokenizer: PublicTokenizer | None = None

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> "LLM":
        """A model with settings that were gathered before."""
        return cls(**vars(engine_args))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(why_missing("LLM", name))

    # -- answers --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        priority: int | Sequence[int] | None = 0,
        request_class: RequestClass | str = RequestClass.ONLINE,
        cache_salt: str | Sequence[str] = "",
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[RequestOutput]:
        """Answer every prompt, text or token ids; outputs come in the prompts' order.

        `prompt_token_ids` are prompts, too, as in earlier releases of vLLM.
        `request_class` is "online" or "batch"; requests of a lower `priority` go first within their class; requests
        share cached prefixes only with those of the same `cache_salt`. `progress` may also be a function that makes a
        bar, and takes tqdm's arguments.

        A prompt that cannot be served raises before any is started. A request that fails on the way has finish_reason
        "error" and does not disturb the others; if the engine itself fails, StepFailed says why.
        """
        refuse_unsupported("generate", unsupported)
        listed = as_prompts(one_of(prompts, prompt_token_ids, ("prompts", "prompt_token_ids")))
        settings = zip(
            self._chosen_params(params, sampling_params, len(listed)),
            as_many(0 if priority is None else priority, len(listed), "priority"),
            as_many(cache_salt, len(listed), "cache_salt"),
            strict=True,
        )
        requests = []
        for number, (prompt, (chosen, rank, salt)) in enumerate(zip(listed, settings, strict=True), 1):
            with naming(number if len(listed) > 1 else None):
                own_salt = salt if prompt.cache_salt is None else prompt.cache_salt
                options = {"request_class": request_class, "priority": rank, "cache_salt": own_salt}
                requests.append(self._request(prompt.content, chosen, **options))
        return self._runner.run(requests, [prompt.text for prompt in listed], _shown(progress, use_tqdm))

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
        processor = self._processor
        lay_out = processor.chat_text if chat_template is None else partial(processor.chat_text_by, chat_template)
        texts = [lay_out(conversation, **variables) for conversation in conversations]
        # The template has already written the special tokens.
        options: dict[str, Any] = {"request_class": request_class, "priority": priority, "cache_salt": cache_salt}
        requests = [
            self._request(text, one, add_special_tokens=False, **options)
            for text, one in zip(texts, chosen, strict=True)
        ]
        return self._runner.run(requests, list(texts), _shown(progress, use_tqdm))

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
        return self._runner.stream(self._request(given.content, chosen, **options), given.text)

    def stream_chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[StreamOutput]:
        """The same for a conversation."""
        [chosen] = self._chosen_params(params, None, 1)
        text = self._processor.chat_text(messages)
        return self._runner.stream(self._request(text, chosen, add_special_tokens=False), text)

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
        self._processor.check_max_tokens(params.max_tokens)
        listed = [self._processor.token_ids(prompt.content) for prompt in as_prompts(prompts)]
        for token_ids in listed:
            self._processor.check_length(token_ids)
        at_once = max(1, len(listed)) if concurrency_limit is None else concurrency_limit
        check_int("concurrency_limit", at_once, 1, _MOST_AT_ONCE)
        assembly = self._assembly
        eos_token_ids = assembly.engine.scheduler.limits.eos_token_ids
        search = BeamSearch(
            params, self._run_token_ids, eos_token_ids, assembly.arch.vocab_size, assembly.config.max_model_len
        )
        outputs: list[BeamSearchOutput] = []
        for first in range(0, len(listed), at_once):
            with progress_bar("searching", params.max_tokens, use_tqdm) as bar:
                outputs += search.search(listed[first : first + at_once], bar.update)
        tokenizer = self._processor.tokenizer
        for sequence in (sequence for output in outputs for sequence in output.sequences):
            sequence.text = None if tokenizer is None else tokenizer.decode(sequence.tokens)
        return outputs

    # -- what a model makes of prompts ----------------------------------------------------------------------------

    def encode(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **unsupported: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """For each prompt, by task: "embed" gives the mean of the last layer's states, "token_embed" the states.

        `truncate_prompt_tokens` keeps only so many tokens at the end of each prompt; -1 keeps as many as fit.
        """
        refuse_unsupported("encode", unsupported)
        listed = as_prompts(one_of(prompts, prompt_token_ids, ("prompts", "prompt_token_ids")))
        pooling = [
            as_pooling(given, pooling_task, truncate_prompt_tokens, self._embedding_sizes)
            for given in as_many(pooling_params, len(listed), "pooling_params")
        ]
        requests = []
        for number, (prompt, each) in enumerate(zip(listed, pooling, strict=True), 1):
            with naming(number if len(listed) > 1 else None):
                requests.append(self._request(prompt.content, each.sampling_params()))
        outputs = self._runner.run(requests, [prompt.text for prompt in listed], _shown(progress, use_tqdm))
        return [pooled(output, each) for output, each in zip(outputs, pooling, strict=True)]

    def embed(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        progress: Progress | None = None,
        use_tqdm: Progress | None = None,
        **options: Any,
    ) -> list[EmbeddingRequestOutput]:
        """For each prompt the mean of the last layer's states over its tokens, as output.outputs.embedding.

        `options` are those of encode, such as truncate_prompt_tokens.
        """
        shown = _shown(progress, use_tqdm)
        outputs = self.encode(prompts, pooling_params, pooling_task="embed", progress=shown, **options)
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
        **options: Any,
    ) -> list[ScoringRequestOutput]:
        """How similar texts are, by the cosine of their embeddings: one with each of several, or pair by pair.

        `options` are those of encode, such as truncate_prompt_tokens.
        """
        first, second = as_prompts(data_1), as_prompts(data_2)
        pairs = paired(first, second)
        shown = _shown(progress, use_tqdm)
        prompts = [prompt.content for prompt in (*first, *second)]
        embeddings = self.embed(prompts, pooling_params=pooling_params, progress=shown, **options)
        return [scored(embeddings[index], embeddings[len(first) + other_index]) for index, other_index in pairs]

    def classify(self, prompts: PromptType | Sequence[PromptType], **_: Any) -> NoReturn:
        """Refused: no model here has a classification head."""
        raise UnsupportedModel(f"{self._assembly.directory.name} cannot classify: {WHY_NOT_CLASSIFIED}")

    # -- the model ------------------------------------------------------------------------------------------------

    def get_tokenizer(self) -> PublicTokenizer:
        """The model's tokenizer, with the methods that users of transformers know."""
        tokenizer = self._processor.tokenizer
        if tokenizer is None:
            raise TokenizerError("no tokenizer was loaded: prompts and answers are token ids")
        if self._public_tokenizer is None:
            self._public_tokenizer = PublicTokenizer(tokenizer, str(self._assembly.tokenizer_directory))
        return self._public_tokenizer

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
    def _embedding_sizes(self) -> EmbeddingSizes:
        return EmbeddingSizes(self._assembly.arch.hidden_size, self._assembly.embedding_sizes)

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
        requests = [self._request(prompt, params) for prompt in prompts]
        return self._runner.run(requests, [None] * len(prompts), progress=False)

    def _request(self, prompt: Prompt, params: SamplingParams, **more: Any) -> Request:
        self._num_requests += 1
        return self._processor.request(prompt, params, external_id=str(self._num_requests - 1), **more)


def _shown(progress: Progress | None, use_tqdm: Progress | None) -> Progress:
    given: Progress | None = one_of(progress, use_tqdm, ("progress", "use_tqdm"))
    return True if given is None else given
