"""What both forms of the laws share: plain functions on numbers are compiled as they are."""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from numba.extending import overload, register_jitable

from servingslo.models.service_time import RequestDemand


class Demand(NamedTuple):
    """`RequestDemand` as the compiler takes it: the same fields."""

    fixed_seconds: float
    marginal_seconds: float
    step_fixed_seconds: float
    step_growth_seconds: float
    prefill_per_token_seconds: float
    output_mean_tokens: float
    output_dispersion: float
    held_tokens: float
    uncached_mean_tokens: float
    uncached_second_moment_tokens2: float
    uncached_third_moment_tokens3: float
    decode_seconds: float
    prefill_mean_seconds: float


DEMAND_COUNT = len(Demand._fields)
_shared: set[Callable[..., Any]] = set()


def share(*functions: Callable[..., Any]) -> None:
    """Let compiled code call these functions, which stay as they are for Python."""
    for function in functions:
        if function not in _shared:
            _shared.add(function)
            register_jitable(function)


def share_modules(*modules: ModuleType) -> None:
    """Let compiled code call the functions of these modules, as far as they are plain numbers."""
    for module in modules:
        for one in vars(module).values():
            if isinstance(one, FunctionType) and one.__module__ == module.__name__:
                share(one)


def compile_as(function: Callable[..., Any], form: Callable[..., Any]) -> None:
    """Let compiled code call this form, of two arguments, where the source calls the function."""

    def found(_first: Any, _second: Any) -> Callable[..., Any]:
        return form

    overload(function, strict=False)(found)


def demand_numbers(demand: RequestDemand) -> list[float]:
    """The numbers of `Demand`."""
    return [float(getattr(demand, name)) for name in Demand._fields]


def demand_of(numbers: Any) -> Any:
    """The demand whose numbers an array begins with, for functions of a `RequestDemand`."""
    return Demand(
        numbers[0],
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        numbers[10],
        numbers[11],
        numbers[12],
    )


share(demand_of)
