"""Classical queues: waits, percentiles, blocking, Little's law, and how many servers to have.

Exact where the name is a Kendall notation with M or D; M/G/c forms are Allen–Cunneen
approximations and say so.
"""

import math
from dataclasses import dataclass

from servingslo.errors import InvalidInputError, ServingSLOError


class UnstableQueueError(ServingSLOError, ValueError):
    """The offered load is at or above capacity, so no stationary law exists."""


def _stable(offered_load: float, server_count: float) -> None:
    if offered_load < 0:
        raise InvalidInputError("offered_load", offered_load, "0 or more")
    if offered_load >= server_count:
        raise UnstableQueueError(f"offered load {offered_load:.4g} is not below {server_count}")


def mm1_response_seconds(service_seconds: float, utilization: float) -> float:
    """Mean time in an M/M/1 system, S/(1 − ρ), in seconds.

    Raises: UnstableQueueError when ρ ≥ 1.
    Source: exact; Machine Learning Systems, chapter "Model Serving", queueing.
    """
    _stable(utilization, 1)
    return service_seconds / (1.0 - utilization)


def mm1_wait_seconds(service_seconds: float, utilization: float) -> float:
    """Mean wait before service in M/M/1, ρ·S/(1 − ρ), in seconds.

    Source: exact; Harchol-Balter (2013), chapter 13.
    """
    _stable(utilization, 1)
    return utilization * service_seconds / (1.0 - utilization)


def md1_wait_seconds(service_seconds: float, utilization: float) -> float:
    """Mean wait before service in M/D/1, half of that in M/M/1, in seconds.

    Source: Pollaczek–Khinchine formula without variance of service; exact.
    """
    return mg1_wait_seconds(service_seconds, service_seconds**2, utilization)


def mg1_wait_seconds(
    service_seconds: float, service_second_moment_seconds2: float, utilization: float
) -> float:
    """Mean wait before service in M/G/1, λ·E[S²]/(2·(1 − ρ)), in seconds.

    Raises: UnstableQueueError when ρ ≥ 1.
    Source: Pollaczek–Khinchine formula; exact.
    """
    _stable(utilization, 1)
    rate = utilization / service_seconds if service_seconds > 0 else 0.0
    return rate * service_second_moment_seconds2 / (2.0 * (1.0 - utilization))


def erlang_b(offered_load: float, server_count: int) -> float:
    """Probability that an arrival is lost in M/M/c/c, by the stable recursion over servers.

    offered_load: λ/μ, 0 or more. Source: A. K. Erlang (1917), loss formula; exact.
    """
    if offered_load < 0:
        raise InvalidInputError("offered_load", offered_load, "0 or more")
    blocking = 1.0
    for servers in range(1, server_count + 1):
        blocking = offered_load * blocking / (servers + offered_load * blocking)
    return blocking


def erlang_c(offered_load: float, server_count: int) -> float:
    """Probability that an arrival waits in M/M/c.

    offered_load: λ/μ, dimensionless, 0 ≤ offered_load < server_count.
    Raises: UnstableQueueError when offered_load ≥ server_count.
    Source: A. K. Erlang (1917), delay formula; exact, no approximation.
    """
    _stable(offered_load, server_count)
    lost = erlang_b(offered_load, server_count)
    ratio = offered_load / server_count
    return lost / (1.0 - ratio * (1.0 - lost))


def mmc_wait_seconds(service_seconds: float, offered_load: float, server_count: int) -> float:
    """Mean wait before service in M/M/c, in seconds.

    Raises: UnstableQueueError when offered_load ≥ server_count.
    Source: A. K. Erlang (1917); Harchol-Balter (2013), chapter 14; exact.
    """
    waiting = erlang_c(offered_load, server_count)
    return waiting * service_seconds / (server_count - offered_load)


def mgc_wait_seconds(
    service_seconds: float,
    offered_load: float,
    server_count: int,
    arrival_dispersion: float = 1.0,
    service_dispersion: float = 1.0,
) -> float:
    """Mean wait in G/G/c: the M/M/c wait times (C_a² + C_s²)/2, in seconds.

    Source: Allen–Cunneen approximation (1990); exact for M/M/c and M/G/1, good near saturation.
    """
    factor = 0.5 * (arrival_dispersion + service_dispersion)
    return factor * mmc_wait_seconds(service_seconds, offered_load, server_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteQueue:
    """An M/M/c/K queue at rest.

    blocking_probability: share of arrivals that find K in system. wait_seconds: mean wait of those
    admitted. in_system_mean: mean number in system. throughput_per_second: admitted arrivals.
    """

    blocking_probability: float
    wait_seconds: float
    in_system_mean: float
    throughput_per_second: float


def mmck(
    arrival_rate_per_second: float, service_seconds: float, server_count: int, room_count: int
) -> FiniteQueue:
    """M/M/c/K: room for room_count requests in system, those in service included.

    Any load is allowed. Source: birth–death chain; exact.
    """
    if room_count < server_count:
        raise InvalidInputError("room_count", room_count, f"at least {server_count}")
    load = arrival_rate_per_second * service_seconds
    mass = [1.0]
    for number in range(1, room_count + 1):
        mass.append(mass[-1] * load / min(number, server_count))
        if mass[-1] > 1e250:
            mass = [m * 1e-250 for m in mass]
    total = sum(mass)
    share = [m / total for m in mass]
    in_system = sum(number * p for number, p in enumerate(share))
    throughput = arrival_rate_per_second * (1.0 - share[-1])
    queued = sum(
        (number - server_count) * share[number] for number in range(server_count, room_count + 1)
    )
    return FiniteQueue(
        blocking_probability=share[-1],
        wait_seconds=queued / throughput if throughput > 0 else 0.0,
        in_system_mean=in_system,
        throughput_per_second=throughput,
    )


def mgck_blocking(
    arrival_rate_per_second: float,
    service_seconds: float,
    server_count: int,
    room_count: int,
    service_dispersion: float,
) -> float:
    """Blocking probability of M/G/c/K: M/M/c/K with the queue's room stretched by variability.

    The part of the room in which requests wait counts 2/(2 + √ρ·(C_s² − 1)) as much: a queue of low
    variability is shorter. Exact for C_s² = 1 and for K = c (insensitivity); of equal services
    at one server 3 % high at ρ = 0.8, half as much again as is lost at 0.5.
    Source: J. M. Smith, Optimal design and performance modelling of M/G/1/K queueing systems
    (2004), two-moment formula, which this is for one server and whole rooms; between these by
    interpolation.
    """
    offered = arrival_rate_per_second * service_seconds / server_count
    stretch = 2.0 / (2.0 + math.sqrt(min(offered, 1.0)) * (service_dispersion - 1.0))
    waiting_room = (room_count - server_count) * stretch
    low = math.floor(waiting_room)
    part = waiting_room - low
    first = mmck(arrival_rate_per_second, service_seconds, server_count, server_count + low)
    if part == 0.0:
        return first.blocking_probability
    second = mmck(arrival_rate_per_second, service_seconds, server_count, server_count + low + 1)
    return (
        first.blocking_probability ** (1.0 - part) * second.blocking_probability**part
        if second.blocking_probability > 0
        else 0.0
    )
