"""The commands of a conversation, given in place of a message: /help, /params, /save and others."""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from archerfish.cli.conversation import ChatHistory, SavedConversation, read_conversation
from archerfish.cli.prompts import decode_utf8
from archerfish.config.load import read_flags
from archerfish.errors import RequestError
from archerfish.request import SamplingParams

EXIT = "/exit"

PARAMS_LEFT_OUT = (
    *("n", "best_of", "logprobs", "prompt_logprobs", "prompt_embedding", "prompt_states", "output_kind"),
    *("structured", "structured_outputs", "guided_decoding", "detokenize", "truncate_prompt_tokens", "speculation"),
)
"""Parameters that a conversation cannot show, or that have no short form."""

_PARAMS = tuple(field.name for field in fields(SamplingParams) if field.name not in PARAMS_LEFT_OUT)
_ALWAYS_SHOWN = ("max_tokens", "temperature", "top_k", "top_p", "seed")
_LARGEST_FILE = 64 << 20


class _Command(NamedTuple):
    usage: str
    help: str
    run: Callable[[ChatHistory, str], str]
    """Runs the command with the text after its name, and returns the message to show."""


def run_command(conversation: ChatHistory, line: str) -> str:
    """Run the command on a line that begins with /, and return the message to show.

    Raises a UserError that names what is wrong.
    """
    name, _, text = line.strip().partition(" ")
    command = _COMMANDS.get(name)
    if command is None:
        known = ", ".join([*_COMMANDS, EXIT])
        raise RequestError(
            f"there is no command {name}; choose from {known} (a message that begins with / needs a space before it)"
        )
    return command.run(conversation, text.strip())


def _help(_: ChatHistory, text: str) -> str:
    _refuse_text("/help", text)
    rows = [(command.usage, command.help) for command in _COMMANDS.values()]
    rows += [
        (EXIT, "quit, as Ctrl-D does"),
        ("Ctrl-C", "stop an answer or clear the line; twice: quit"),
        ("\\", "ends a line: the message continues on the next"),
        ('"""', "before and after a message of several lines"),
    ]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(f"  {usage:{width}}  {meaning}" for usage, meaning in rows)


def _params(conversation: ChatHistory, text: str) -> str:
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise RequestError(f"/params {text}: {error}; quotes come in pairs") from error
    given = {}
    for name, equals, value in pairs:
        if not equals:
            raise RequestError(f"/params {name}: write name=value, as in /params temperature=0.7")
        if name not in _PARAMS:
            raise RequestError(f"/params: there is no parameter {name}; choose from {', '.join(_PARAMS)}")
        given[name] = value
    conversation.params = replace(conversation.params, **read_flags(SamplingParams, given, lambda name: name))
    return _shown_params(conversation.params)


def _shown_params(params: SamplingParams) -> str:
    """Return the parameters that are always shown, and those that differ from their defaults."""
    usual = SamplingParams()
    names = [name for name in _PARAMS if name in _ALWAYS_SHOWN or getattr(params, name) != getattr(usual, name)]
    return "  ".join(f"{name}={_shown(getattr(params, name))}" for name in names)


def _shown(value: object) -> str:
    """Return a value as /params reads it."""
    if value is None:
        return "none"
    if isinstance(value, (bool, Mapping)):
        return shlex.quote(json.dumps(value))
    return shlex.quote(",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _system(conversation: ChatHistory, text: str) -> str:
    conversation.system = text or None
    return "(System prompt set.)" if text else "(No system prompt.)"


def _reset(conversation: ChatHistory, text: str) -> str:
    _refuse_text("/reset", text)
    conversation.reset()
    return "(All turns were removed.)"


def _save(conversation: ChatHistory, text: str) -> str:
    path = _path("/save", text)
    try:
        if path.exists():
            _check_may_replace(path)
        path.write_text(conversation.to_json(), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot write {path}: {_reason(error)}") from error
    return f"({_turns(conversation.num_turns)} saved to {path}.)"


def _check_may_replace(path: Path) -> None:
    """Refuse to overwrite a file that is not a saved conversation: a typo must not destroy it."""
    try:
        _read(path)
    except RequestError as error:
        raise RequestError(
            f"{path} exists and is not a saved conversation; choose another file, or remove it"
        ) from error


def _load(conversation: ChatHistory, text: str) -> str:
    path = _path("/load", text)
    try:
        conversation.resume(_read(path))
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {path}: {_reason(error)}") from error
    return f"({_turns(conversation.num_turns)} loaded from {path}.)"


def _read(path: Path) -> SavedConversation:
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is not a file")
    if path.stat().st_size > _LARGEST_FILE:
        raise RequestError(f"{path} is larger than {_LARGEST_FILE >> 20} MiB, too large for a conversation")
    text = decode_utf8(path.read_bytes(), str(path))
    try:
        return read_conversation(text)
    except RequestError as error:
        raise RequestError(f"{path} is not a saved conversation: {error}") from error


def _path(command: str, text: str) -> Path:
    if not text:
        raise RequestError(f"{command} needs a file: {command} FILE")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise RequestError(f"{command} {text}: {error}") from error


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def _refuse_text(command: str, text: str) -> None:
    if text:
        raise RequestError(f"{command} takes no argument; leave out {text!r}")


_COMMANDS = {
    "/help": _Command("/help", "list the commands", _help),
    "/params": _Command("/params [NAME=VALUE ...]", "show or set sampling: /params temperature=0.7", _params),
    "/system": _Command("/system [TEXT]", "set the system prompt; without TEXT, remove it", _system),
    "/save": _Command("/save FILE", "save the conversation, as JSON", _save),
    "/load": _Command("/load FILE", "continue a saved conversation", _load),
    "/reset": _Command("/reset", "remove all turns; the system prompt stays", _reset),
}
