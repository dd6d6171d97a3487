"""/tokenize and /detokenize: whole replies, as JSON. Knows no HTTP."""

import msgspec

from archerfish.api.bodies.tokens import DetokenizeBody, TokenizeBody
from archerfish.api.model import ServedModel
from archerfish.errors import TokenizerError


def tokenize(model: ServedModel, body: TokenizeBody) -> bytes:
    """Token ids of a text, or of a chat as the model's template lays it out."""
    model.check_name(body.model)
    intake, text = model.intake, body.prompt
    if body.messages is not None:
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        text = intake.chat_text(messages, add_generation_prompt=body.add_generation_prompt)
    assert text is not None
    token_ids = intake.token_ids(text, add_special_tokens=body.add_special_tokens)
    texts = None
    if body.return_token_strs and intake.tokenizer is not None:
        text_of = {token_id: intake.tokenizer.token_text(token_id) for token_id in set(token_ids)}
        texts = [text_of[token_id] for token_id in token_ids]
    counts = {"count": len(token_ids), "max_model_len": intake.max_model_len, "tokens": token_ids}
    return msgspec.json.encode({**counts, "token_strs": texts})


def detokenize(model: ServedModel, body: DetokenizeBody) -> bytes:
    """The text of token ids."""
    model.check_name(body.model)
    token_ids = model.intake.token_ids(body.tokens)
    if model.intake.tokenizer is None:
        raise TokenizerError("this service was started without a tokenizer")
    return msgspec.json.encode({"prompt": model.intake.tokenizer.decode(token_ids, skip_special_tokens=False)})
