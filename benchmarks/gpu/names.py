"""The groups of rows that can be measured, in order, with what they contain. Imports no torch."""

GROUPS = {
    "machine": "what memory and tensor cores reach",
    "8b": "Llama-3.1-8B in bfloat16, one request",
    "1b": "Llama-3.2-1B in bfloat16, one request",
    "0.6b": "Qwen3-0.6B in bfloat16, one request",
    "fp8": "Llama-3.1-8B in fp8, one request",
    "int4": "Llama-3.1-8B in int4 in groups of 128, one request",
    "int8": "Llama-3.1-8B in int8, one request",
    "w8a8": "Llama-3.1-8B in w8a8, one request",
    "slope": "Llama-3.1-8B: what a cached token adds to a step, keys and values in bfloat16 and in fp8",
    "prefill": "Llama-3.1-8B: a prompt of 8,192 tokens",
    "nano-vllm": "Qwen3-0.6B: the 256 requests of nano-vllm",
    "invariance": "GEMMs of a layer, compared with the fastest that may add in any order",
    "start": "Llama-3.1-8B: a new process to its first token",
    "qwen3-8b": "Qwen3-8B: 256 requests of 1,024 tokens in and out",
    "fp8-1000-1000": "Llama-3.1-8B in fp8, keys and values too: 512 requests of 1,000 tokens in and out",
    "fp8-128-2048": "Llama-3.1-8B in fp8, keys and values too: 512 requests of 128 tokens in, 2,048 out",
}
