"""Which function of the user's a refused call is about, where several have one name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from flatout.engine.runtime.user_code import function_refusing

PARAMETERS = ["self", "self, epoch", "self, *, epoch", "self, epoch, batch=1", "**more"]


@pytest.fixture
def modules() -> Iterator[list[ModuleType]]:
    """Modules with a class `Stream` each, whose methods differ in their parameters."""
    made = []
    for number, parameters in enumerate(PARAMETERS):
        module = ModuleType(f"stream_of_a_test_{number}")
        exec(f"class Stream:\n  def state_of({parameters}): pass", vars(module))
        sys.modules[module.__name__] = module
        made.append(module)
    yield made
    for module in made:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("number", "call"),
    [
        (0, lambda stream: stream.state_of("more")),
        (0, lambda stream: stream.state_of(epoch=1)),
        (1, lambda stream: stream.state_of()),
        (1, lambda stream: stream.state_of(1, 2)),
        (2, lambda stream: stream.state_of()),
        (3, lambda stream: stream.state_of(1, 2, 3)),
        (4, lambda stream: stream.state_of()),
    ],
)
def test_function_refusing_is_one_that_can_have_refused_so(
    modules: list[ModuleType], number: int, call: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError) as caught:
        call(modules[number].Stream())
    name, refusal = str(caught.value).split("() ")
    function = function_refusing(name, refusal, own=False)
    assert function is not None
    # Others of that name may fit as well; then a call of them is refused with the same words.
    with pytest.raises(TypeError) as again:
        call_of(function, call)
    assert str(again.value) == str(caught.value)


def call_of(function: Callable[..., object], call: Callable[[object], object]) -> object:
    """Calls a function as the method of an object."""
    return call(type("Stream", (), {"state_of": function})())


def test_no_function_refusing_where_none_has_these_parameters(modules: list[ModuleType]) -> None:
    refusal = "missing 1 required positional argument: 'of_nobody'"
    assert function_refusing("Stream.state_of", refusal, own=False) is None
