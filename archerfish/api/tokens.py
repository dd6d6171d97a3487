"""The /tokenize and /detokenize endpoints: whole replies, as JSON."""

import msgspec

from archerfish.api.bodies.prompts import DetokenizeBody, TokenizeBody
from archerfish.api.chat import template_variables
from archerfish.api.conversation import Conversation
from archerfish.api.model import ServedModel
from archerfish.errors import TokenizerError


def tokenize(model: ServedModel, body: TokenizeBody) -> bytes:
    """Token ids of a text, or of a chat as the model's template lays it out."""
    model.check_name(body.model)
    processor, is_chat = model.processor, body.prompt is None
    text = _chat_text(model, body) if body.prompt is None else body.prompt
    adds = not is_chat if body.add_special_tokens is None else body.add_special_tokens
    token_ids = processor.token_ids(text, add_special_tokens=adds)
    texts = None
    if body.return_token_strs and processor.tokenizer is not None:
        text_of = {token_id: processor.tokenizer.token_text(token_id) for token_id in set(token_ids)}
        texts = [text_of[token_id] for token_id in token_ids]
    counts = {"count": len(token_ids), "max_model_len": processor.max_model_len, "tokens": token_ids}
    return msgspec.json.encode({**counts, "token_strs": texts})


def _chat_text(model: ServedModel, body: TokenizeBody) -> str:
    """The prompt that /v1/chat/completions makes of the same fields."""
    return Conversation(
        model,
        [message.model_dump(exclude_none=True) for message in body.messages or ()],
        tools=body.tools or None,
        template=template_variables(body),
    ).prompt


def detokenize(model: ServedModel, body: DetokenizeBody) -> bytes:
    """The text of token ids."""
    model.check_name(body.model)
    token_ids = model.processor.token_ids(body.tokens)
    if model.processor.tokenizer is None:
        raise TokenizerError("this service was started without a tokenizer")
    return msgspec.json.encode({"prompt": model.processor.tokenizer.decode(token_ids, skip_special_tokens=False)})
