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
    """Model to run: a directory in Hugging Face layout, a bundled model (perch, minnow), or a hub name such as \
Qwen/Qwen3-0.6B. By default perch."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    tokenizer: str | None = None
    """Tokenizer, named like a model, if it is not the model's own."""
    skip_tokenizer_init: bool = False
    """Load no tokenizer: prompts and outputs are token ids."""
    chat_template: str | None = None
    """Jinja chat template: a file, or the template itself. By default the model's own."""
    load_format: LoadFormat = "auto"
    """auto reads safetensors; dummy makes random weights from config.json alone, which may be any JSON file of that \
form, to measure speed without weights. Random weights repeat themselves, so dummy disables speculation unless \
speculative_config is given."""
    dtype: Dtype = "auto"
    """Number format of weights and activations; auto takes the checkpoint's (float32 for float16 on a CPU)."""
    quantization: Quantization = "none"
    """Weight format, quantized while loading. All but none are lossy: int8 has 8-bit weights with a scale per output, \
and activations quantized in groups; w8a8 quantizes activations per token; int4 has 4-bit weights in groups; fp8 is \
w8a8 in 8-bit floats, for GPUs."""
    quantization_group: int = 64
    """With int4: weights that share a scale, 32, 64 or 128. Smaller groups are more accurate and take more memory."""
    quantization_zero_points: bool = False
    """With int4: give each group a zero point instead of a symmetric range."""
    quantization_rounding: Rounding = "auto"
    """With int4: nearest rounds each weight on its own; calibrated first generates a text and rounds to minimize the \
error on it, which is more accurate and loads more slowly; auto calibrates models of up to 200 million parameters."""
    hf_overrides: Mapping[str, Any] = field(default_factory=dict)
    """JSON object that overrides fields of config.json; null removes one."""
    seed: int = 0
    """Seed for requests without one of their own, and for dummy weights."""
    max_model_len: int | None = None
    """Maximum context length: prompt and output tokens together. By default the model's own."""
    device: Device = "auto"
    """Device to run on; auto takes a GPU if there is one."""
    threads: int | None = None
    """CPU threads; by default every core that this process may use."""
    kernels: Kernels = "auto"
    """Kernels that run the model; auto takes the fastest that model and machine allow: triton on a GPU; amx, avx512 \
or avx2 on a CPU. reference is plain torch."""
    block_size: int = 16
    """Tokens per block of the KV cache."""
    enable_prefix_caching: bool = True
    """Retain the KV cache of finished requests, and compute a shared prefix only once."""
    gpu_memory_utilization: float | None = None
    """Fraction of the device's free memory to use (main memory on a CPU). By default 0.9 on a GPU, 0.5 on a CPU."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Number format of the KV cache; auto takes the model's own. Smaller ones are lossy: int8 (CPU) has a scale per \
head and token, fp8 (GPU) has none."""
    kv_cache_memory_bytes: int | None = None
    """Size of the KV cache, instead of what gpu_memory_utilization leaves. Accepts 2G, 512M."""
    max_num_seqs: int | None = None
    """Maximum number of sequences that run at once. By default 256, or max_num_batched_tokens if that is less."""
    max_num_batched_tokens: int | None = None
    """Maximum number of tokens per step; longer prompts are split into chunks. By default 512 on a CPU, 8192 on a \
GPU."""
    speculative_config: Mapping[str, Any] = field(default_factory=dict)
    """JSON object with the settings of speculative decoding. "method": auto (default) uses what pays, off disables \
it, suffix (or ngram) copies from prompt and output, lookahead drafts in parallel, and draft_model, eagle (or eagle3) \
and medusa run the drafter in "model". "verification": coupled (default) accepts draft tokens that equal the sampled \
ones, rejection preserves the distribution, typical is lossy ("typical_epsilon", "typical_delta"). Other keys: \
"num_speculative_tokens", "branches", "shared", "quantization" (of the drafter), "prompt_lookup_max", \
"prompt_lookup_min"."""
    batching: Batching = "continuous"
    """When waiting requests start: continuous admits them at any step; dynamic starts a batch when it is full or its \
window has passed; static only when it is full."""
    batch_window_ms: float = 50.0
    """With dynamic batching: how long the first request of a batch waits for others, in milliseconds."""
    check_invariants: bool = False
    """Check the consistency of scheduler and KV cache after every step. For debugging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the service meets the world."""

    host: str = "127.0.0.1"
    """Address to listen on. Addresses other than localhost need API keys, or --allow-anonymous."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    served_model_name: tuple[str, ...] = ()
    """Names by which clients may request the model; replies carry the first. By default the name it was started \
with."""
    api_key: tuple[str, ...] = ()
    """API key that clients must send. Prefer the environment (comma-separated) to the command line, which other users \
can see."""
    key_file: str | None = None
    """TOML file of API keys with names, limits and priorities; reloaded when it changes."""
    allow_anonymous: bool = False
    """Serve other machines without API keys."""
    cors_origins: str | None = None
    """Comma-separated origins that browsers may call from; * allows all."""
    allowed_hosts: str | None = None
    """Comma-separated host names by which clients without API keys may call the server; IP addresses and localhost \
are always allowed. * allows all."""
    tls_certificate: str | None = None
    """PEM file with the certificate chain, to serve HTTPS."""
    tls_key: str | None = None
    """PEM file with the private key of the certificate."""
    max_queued_requests: int = 4096
    """Maximum number of open outputs (n per request with n), half of them for any one of several API keys. Requests \
beyond it get HTTP 429."""
    max_queued_tokens: int = 4_000_000
    """Maximum number of prompt tokens in open requests; requests beyond it get HTTP 429."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Maximum size of a request body, file uploads aside. Accepts 8M."""
    max_body_items: int | None = None
    """Maximum number of JSON items (values and object members) in a request body, and of log-probabilities in its \
reply. By default 256K, or twice max_model_len if that is more."""
    preprocessing_workers: int | None = None
    """Processes that parse bodies, render chat templates and tokenize prompts. By default 2, more from 24 cores \
on."""
    max_file_bytes: int = 512 * 1024 * 1024
    """Maximum size of an uploaded file."""
    min_upload_rate: int = 16 * 1024
    """Minimum upload speed in bytes per second, over each --body-timeout; slower uploads are aborted. A file of the \
maximum size may thus take --max-file-bytes divided by this."""
    max_files: int = 10_000
    """Maximum number of files per API key, batch outputs included."""
    max_stored_bytes: int = 32 * 1024**3
    """Maximum total size of the files of an API key. Accepts 32G."""
    max_open_batches: int = 100
    """Maximum number of unfinished batches per API key."""
    body_timeout: float = 30.0
    """Seconds that a client may take to send its headers, and again its body."""
    keep_alive_timeout: float = 30.0
    """Seconds after which an idle connection is closed."""
    slo_ttft_ms: float | None = None
    """Objective for the time to first token, in milliseconds, for requests that name none."""
    slo_tpot_ms: float | None = None
    """Objective for the time per output token, in milliseconds, for requests that name none."""
    stall_timeout: float = 30.0
    """Seconds without a step or heartbeat after which the engine counts as stalled: the server reports that it is not \
alive, fails open requests and restarts the engine."""
    shutdown_timeout: float = 30.0
    """Seconds that running requests may take to finish when the server is stopped."""
    data_dir: str | None = None
    """Directory for uploaded files and batches; without one, the files and batches APIs are off."""
    tool_call_format: str | None = None
    """Format of the model's tool calls: hermes, llama3, mistral, mistral-args, perch, or vLLM's name for one of them, \
as in --tool-call-parser llama3_json. By default detected from the chat template."""
    reasoning_parser: str | None = None
    """Format of the model's reasoning, which replies separate from the answer: think, deepseek_r1, qwen3, mistral, \
seed_oss, or vLLM's name for one of them; none leaves it in the answer. By default detected from the chat template."""
    peak_flops: float | None = None
    """Peak FLOP/s of the device, to report utilization; measured by default."""
    peak_bandwidth: float | None = None
    """Peak memory bandwidth of the device in bytes per second, to report utilization; measured by default."""
    log_json: bool = False
    """Log one JSON object per line instead of text."""
    otlp_traces_endpoint: str | None = None
    """URL of an OpenTelemetry collector to send request spans to (OTLP over HTTP), such as \
http://localhost:4318/v1/traces. Needs archerfish[tracing]."""


def flag_name(field_name: str) -> str:
    """'--max-model-len' for 'max_model_len'."""
    return "--" + field_name.replace("_", "-")
