"""What a user can set, each field with its meaning. Values may be "auto" or None; resolve.py makes them concrete.

The text under a field is its documentation everywhere: command-line help is generated from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["none", "int8", "w8a8", "int4", "fp8"]
KvCacheDtype = Literal["auto", "float32", "bfloat16", "int8", "fp8"]
Rounding = Literal["auto", "nearest", "calibrated"]
Kernels = Literal["auto", "triton", "amx", "avx512", "avx2", "reference"]
Batching = Literal["continuous", "dynamic", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine is built from."""

    model: str | None = None
    """Directory of a checkpoint in Hugging Face layout, a model that comes with the package (perch, minnow), or a hub \
name such as Qwen/Qwen3-0.6B; by default perch."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    tokenizer: str | None = None
    """Where the tokenizer is, named like a model, if it is not the model's own."""
    skip_tokenizer_init: bool = False
    """Load no tokenizer: prompts and answers are token ids."""
    chat_template: str | None = None
    """How chats are laid out: a file with a Jinja template, or the template itself; by default the model's own."""
    load_format: LoadFormat = "auto"
    """auto reads safetensors; dummy makes random weights from config.json alone, and takes any JSON file of that form \
as the model: speed can be measured without weights. Speculation is then off unless speculative_config says \
otherwise: random weights repeat themselves, which would flatter it."""
    dtype: Dtype = "auto"
    """Number format of weights and activations; auto takes the checkpoint's, and float32 for float16 on a CPU."""
    quantization: Quantization = "none"
    """Format of the weights while the model runs, made when it is loaded. Lossy, all but none: int8 keeps a scale for \
each output, and activations in groups; w8a8 has one scale for a token's activations; int4 has groups of weights; fp8 \
is w8a8 in eight-bit floats, for GPUs."""
    quantization_group: int = 64
    """With int4: weights that share a scale, 32, 64 or 128. Fewer are nearer to the original, and take more memory."""
    quantization_zero_points: bool = False
    """With int4: groups have a zero point each, instead of being symmetric around 0."""
    quantization_rounding: Rounding = "auto"
    """With int4: nearest takes every weight by itself; calibrated has the model write a text first and rounds with \
regard to what inputs do there, which is nearer to the original and takes longer to load; auto calibrates \
models of up to 200 million parameters."""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """JSON object laid over config.json, for fields that are wrong or not understood; a null sets one to none."""
    seed: int = 0
    """Where the seeds of requests that name none come from, and dummy weights."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens; by default what the model was trained for."""
    device: Device = "auto"
    """Where to run; auto takes a GPU where there is one."""
    threads: int | None = None
    """CPU threads; by default every core this process may use."""
    kernels: Kernels = "auto"
    """Which implementation runs the model; auto takes the fastest that model and machine allow: triton on a GPU, the \
native ones for amx, avx512 or avx2 on a CPU. reference is plain torch."""
    block_size: int = 16
    """Tokens in one block of the KV cache."""
    enable_prefix_caching: bool = True
    """Keep the KV cache of finished requests, and compute a prefix seen before only once."""
    gpu_memory_utilization: float | None = None
    """Share of the device's free memory (main memory on a CPU) to fill; by default 0.9 on a GPU, 0.5 on a CPU."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Number format of keys and values in the cache; auto takes the model's own. Lossy, where it is smaller: int8 \
keeps a scale for each head and token, fp8 is for GPUs and has none."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache, instead of what memory utilization leaves. Accepts 2G, 512M."""
    max_num_seqs: int | None = None
    """Most sequences that run at once; by default 256, or fewer if a step is set to fewer tokens."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one step; longer prompts are cut into chunks. By default 512 on a CPU, 8192 on a GPU."""
    speculative_config: Mapping[str, Any] = field(default_factory=dict)
    """JSON object with settings of speculative decoding: {"method": "suffix"} (or ngram) copies from prompt and \
answer; draft_model, eagle and medusa run the drafter given as "model"; lookahead drafts in parallel; auto (the \
default) takes whatever pays; off disables it. "verification" says which draft tokens are accepted: coupled (the \
default) keeps the very tokens, rejection their distribution; typical is lossy: answers change, within \
"typical_epsilon" and "typical_delta"."""
    batching: Batching = "continuous"
    """continuous admits requests at any step; dynamic starts a batch when it is full or its window has passed; \
static only when it is full."""
    batch_window_ms: float = 50.0
    """With dynamic batching: how long the first request of a batch waits for company."""
    check_invariants: bool = False
    """Check the scheduler's and the cache's books after every step. For debugging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the service meets the world."""

    host: str = "127.0.0.1"
    """Address to listen on. Others than this machine's own need keys, or --allow-anonymous."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: tuple[str, ...] = ()
    """Names that clients may call the model by; replies carry the first. By default what it was started with."""
    api_key: tuple[str, ...] = ()
    """Key that clients must send. Better in the environment (with commas between several) than on the command line, \
where others may see it."""
    key_file: str | None = None
    """TOML file of keys with names, limits and priorities; read again when it changes."""
    allow_anonymous: bool = False
    """Serve other machines without keys."""
    cors_origins: str | None = None
    """Origins that pages may call from, with commas between them; * is all."""
    allowed_hosts: str | None = None
    """Host names, with commas between them, by which clients without keys may call this service; addresses and \
localhost always may. * is all."""
    tls_certificate: str | None = None
    """PEM file of the certificate chain, to serve HTTPS."""
    tls_key: str | None = None
    """PEM file of the certificate's key."""
    max_queued_requests: int = 4096
    """Answers that may be open at once, n for a request with n, half of them by one of several keys; beyond them \
requests get status 429."""
    max_queued_tokens: int = 4_000_000
    """Prompt tokens of open requests, likewise."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest body of a request, files aside. Accepts 8M."""
    max_body_items: int | None = None
    """JSON items (values and object members) that one body may hold, and log-probabilities that its reply may hold; \
by default 256K, or twice max_model_len if that is more."""
    preprocessing_workers: int | None = None
    """Processes that read bodies, render chat templates and tokenize prompts; by default 2, more from 24 cores on."""
    max_file_bytes: int = 512 * 1024 * 1024
    """Largest file that may be uploaded."""
    min_upload_rate: int = 16 * 1024
    """Bytes a second that an upload must bring over any --body-timeout; a slower one is ended. A file of the largest \
size may so take --max-file-bytes divided by this."""
    max_files: int = 10_000
    """Files that a key may keep, outputs of its batches included."""
    max_stored_bytes: int = 32 * 1024**3
    """Bytes that the files of a key may take. Accepts 32G."""
    max_open_batches: int = 100
    """Batches of a key that may be open at once: those that have not ended."""
    body_timeout: float = 30.0
    """Seconds that a client may take to send its headers, and again its body."""
    keep_alive_timeout: float = 30.0
    """Seconds that an idle connection is kept."""
    slo_ttft_ms: float | None = None
    """Time to first token that requests should meet, unless they name their own."""
    slo_tpot_ms: float | None = None
    """Time per output token, likewise."""
    stall_timeout: float = 30.0
    """Seconds that the engine may be silent, idle or not: no step finished, and no heartbeat where there is no work. \
Then the service says that it is not alive, kills the engine and starts it again; open requests end with an error."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests may take to finish when the service is asked to stop."""
    data_dir: str | None = None
    """Directory of uploaded files and batches; without one there are no batches."""
    tool_call_format: str | None = None
    """How the model writes tool calls: hermes, llama3, mistral, mistral-args, perch or the name that vLLM has for one \
of these, as in --tool-call-parser llama3_json; by default what its chat template says."""
    reasoning_parser: str | None = None
    """How the model marks its reasoning, which replies then tell apart from the answer: think, deepseek_r1, qwen3, \
mistral, seed_oss or another name that vLLM has for one of these; none leaves it in the answer; by default what its \
chat template says."""
    peak_flops: float | None = None
    """FLOP/s the device can do, for utilization; measured by default."""
    peak_bandwidth: float | None = None
    """Bytes per second the device can read, likewise."""
    log_json: bool = False
    """One JSON object a line instead of text."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector that spans of requests are sent to (OTLP over HTTP), such as \
http://localhost:4318/v1/traces. Needs archerfish[tracing]."""


def flag_name(field_name: str) -> str:
    """'--max-model-len' for 'max_model_len'."""
    return "--" + field_name.replace("_", "-")
