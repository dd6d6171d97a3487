"""The engine from Python: many prompts at once, a chat, an answer as it is written.

python examples/offline.py                       the bundled model, perch
python examples/offline.py Qwen/Qwen3-0.6B       any directory or hub name
"""

import sys

from archerfish import LLM, SamplingParams


def main() -> None:
    # Settings are those of the command line, with underscores.
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_model_len=1024) as llm:
        # All prompts run together; outputs come in their order. The same seed gives the same tokens in any batch.
        params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=1)
        for output in llm.generate(["Once upon a time", "The archerfish"], params):
            answer = output.outputs[0]
            print(f"{output.prompt!r} -> {answer.text!r} ({answer.finish_reason})")

        # A conversation is laid out by the model's own chat template.
        messages = [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": "What is a river?"},
        ]
        [output] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24))
        print(repr(output.outputs[0].text))

        # Leaving this loop early would cancel the request.
        for piece in llm.stream("The river", SamplingParams(temperature=0, max_tokens=24)):
            print(piece.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
