"""Errors cross the border between processes: what arrives is what was raised."""

import copy
import pickle

import pytest

from archerfish import errors
from archerfish.errors import ArcherfishError, InvalidParameter, OutOfBounds, PromptTooLong

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ArcherfishError)]


def example(kind: type[ArcherfishError]) -> ArcherfishError:
    if kind is InvalidParameter:
        return InvalidParameter("top_p", lambda: None, "a value of any kind can be refused, even one that is not sent")
    if kind is PromptTooLong:
        return PromptTooLong(300, 256)
    if kind is OutOfBounds:
        return OutOfBounds("a token id", 7, 0, 6)
    return kind("what went wrong")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind: type[ArcherfishError], protocol: int) -> None:
    error = example(kind)
    for twin in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(twin) is kind
        assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error))


def test_every_class_of_the_tree_is_tried() -> None:
    assert {InvalidParameter, PromptTooLong, errors.StepFailed, errors.NoKernel} <= set(CLASSES)
