"""Prompts of a mix as plain arrays, with what `prompt_work` tells of them."""

import math
from typing import NamedTuple

import numpy as np

from servingslo.models import prompt_work
from servingslo.models.compiled.shared import compile_as, share
from servingslo.models.compiled.spectra import COARSE, FINE, TERMS, add_turns
from servingslo.models.prompt_work import (
    ROOM_TOKENS,
    STRETCH_PART,
    STRETCH_PARTS,
    TINY_TOKENS,
    Group,
    PromptWork,
)
from servingslo.models.service_time import FloatArray

_ROWS = 5


class Prompts(NamedTuple):
    """As `PromptWork`, without its tables."""

    seconds: FloatArray
    weights: FloatArray
    tokens: FloatArray
    weights_from: FloatArray
    mean_tokens_below: FloatArray
    mean_seconds: float
    second_moment_seconds2: float
    longest_seconds: float
    lag_seconds: float


class LongSplit(NamedTuple):
    """Prompts by how they fit in a room: indexes of points, and tokens.

    start: of the first that does not fit. whole: of the first that does not fit beside another one.
    beside_tokens: to which that one is cut. groups: as in `LongPrompts`; ends: index behind each.
    """

    start: int
    whole: int
    beside_tokens: float
    groups: list[Group]
    ends: list[int]


def prompt_constants(work: PromptWork) -> FloatArray:
    """All that is compiled about prompts, in one array: what `prompts_of` takes apart."""
    points = len(work.tokens)
    constants = np.zeros((_ROWS + 1, max(points + 1, 4)))
    constants[0, :points] = work.seconds
    constants[1, :points] = work.weights
    constants[2, :points] = work.tokens
    constants[3, : points + 1] = work.weights_from
    constants[4, : points + 1] = work.mean_tokens_below
    constants[5, :4] = (
        work.mean_seconds,
        work.second_moment_seconds2,
        work.longest_seconds,
        points,
    )
    return constants


def prompts_of(constants: FloatArray) -> Prompts:
    """The arrays and numbers of `prompt_constants`."""
    mean, square, points = constants[5, 0], constants[5, 1], int(constants[5, 3])
    return Prompts(
        constants[0, :points],
        constants[1, :points],
        constants[2, :points],
        constants[3, : points + 1],
        constants[4, : points + 1],
        mean,
        square,
        constants[5, 2],
        0.5 * square / mean if mean > 0.0 else 0.0,
    )


def paired_steps(prompts: Prompts, room_tokens: float) -> float:
    """As `prompt_work.paired_steps`."""
    room = ROOM_TOKENS * (int(room_tokens / ROOM_TOKENS) + 0.5)
    points, weights = len(prompts.tokens), prompts.weights
    rooms, steps = np.empty(points), np.zeros(points)
    for j in range(points):
        rooms[j] = prompts.tokens[j] / room
    for i in range(points):
        own, alone, weight = rooms[i], np.ceil(rooms[i]), weights[i]
        for j in range(points):
            steps[j] += weight * (np.ceil(own + rooms[j]) - alone)
    mean = 0.0
    for j in range(points):
        mean += weights[j] * steps[j]
    return mean


def mean_steps(prompts: Prompts, room_tokens: float) -> float:
    """As `prompt_work.mean_steps`."""
    tokens = prompts.tokens
    if tokens[-1] <= room_tokens:
        return 1.0
    room = ROOM_TOKENS * (int(room_tokens / ROOM_TOKENS) + 0.5)
    mean = 0.0
    for i in range(len(tokens)):
        mean += prompts.weights[i] * max(np.ceil(tokens[i] / room), 1.0)
    return mean


def add_prompts(
    prompts: Prompts,
    points: tuple[int, int],
    unit: float,
    mgf: FloatArray,
    slope: FloatArray,
) -> None:
    """Add the transform of the work of prompts between these points, and that with work as factor.

    unit: the first frequency above 0.
    """
    turns = np.empty((2, FINE + COARSE))
    for j in range(points[0], points[1]):
        seconds, weight = prompts.seconds[j], prompts.weights[j]
        add_turns((weight, weight * seconds), unit * seconds, turns, mgf, slope)


def stretched(
    prompts: Prompts, unit: float, stretch: float, excess: FloatArray, slope: FloatArray
) -> None:
    """As `PromptWork.stretched`: between two stretches a part of a doubling apart."""
    parts = math.log2(stretch) * STRETCH_PARTS
    key = int(parts)
    share = (stretch * 2.0 ** (-key / STRETCH_PARTS) - 1.0) / STRETCH_PART
    turns = np.empty((2, FINE + COARSE))
    excess[:] = 0.0
    slope[:] = 0.0
    for end in range(2):
        longer = 2.0 ** ((key + end) / STRETCH_PARTS)
        weight_of_end = share if end else 1.0 - share
        for j in range(len(prompts.seconds)):
            seconds, weight = prompts.seconds[j] * longer, prompts.weights[j] * weight_of_end
            add_turns((weight, weight * seconds), unit * seconds, turns, excess, slope)
    for k in range(TERMS):
        excess[k] -= 1.0


def split_at_room(prompts: Prompts, room: float) -> LongSplit:
    """Prompts longer than the room in groups; as `PromptWork.long_prompts`, at least one is."""
    tokens, points = prompts.tokens, len(prompts.tokens)
    start = 0
    while tokens[start] <= room:
        start += 1
    groups, ends = [], []
    first = start
    while first < points:
        before = np.ceil(tokens[first] / room) - 1.0
        end = first + 1
        while end < points and np.ceil(tokens[end] / room) - 1.0 == before:
            end += 1
        weight = prompts.weights_from[first] - prompts.weights_from[end]
        mean = (prompts.mean_tokens_below[end] - prompts.mean_tokens_below[first]) / weight
        groups.append((before, max((before + 1.0) * room - mean, 0.0), weight))
        ends.append(end)
        first = end
    fitting = max(1.0 - prompts.weights_from[start], TINY_TOKENS)
    beside = max(room - prompts.mean_tokens_below[start] / fitting, 0.0)
    whole = 0
    while whole < points and tokens[whole] <= beside:
        whole += 1
    return LongSplit(start, whole, beside, groups, ends)


share(
    prompts_of,
    add_prompts,
    stretched,
    split_at_room,
    paired_steps,
    mean_steps,
    prompt_work.fitting_ratio,
)
compile_as(prompt_work.paired_steps, paired_steps)
compile_as(prompt_work.mean_steps, mean_steps)
