"""Classical queues: waits, percentiles, blocking, Little's law, and how many servers to have.

Exact where the name is a Kendall notation with M or D; M/G/c forms are Allen–Cunneen
approximations and say so.
"""

import math
from dataclasses import dataclass

from scipy.special import pdtr

from servingslo.errors import InvalidInputError, ServingSLOError

# 2.33 standard normal deviates leave 1 % above; −ln 0.01 = 4.6 means of an exponential do.
# Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", tail rules.
LIGHT_TAIL_P99_DEVIATES = 2.33
EXPONENTIAL_P99_MEANS = -math.log(0.01)


class UnstableQueueError(ServingSLOError, ValueError):
    """The offered load is at or above capacity, so no stationary law exists."""


def _stable(offered_load: float, server_count: float) -> None:
    if offered_load < 0:
        raise InvalidInputError("offered_load", offered_load, "0 or more")
    if offered_load >= server_count:
        raise UnstableQueueError(f"offered load {offered_load:.4g} is not below {server_count}")


def beyond_share(percentile: float) -> float:
    """Share of requests above a percentile.

    Source: definition of a percentile.
    """
    if not 0.0 <= percentile < 100.0:
        raise InvalidInputError("percentile", percentile, "0 or more, below 100")
    return 1.0 - percentile / 100.0


def mm1_response_seconds(service_seconds: float, utilization: float) -> float:
    """Mean time in an M/M/1 system, S/(1 − ρ), in seconds.

    Raises: UnstableQueueError when ρ ≥ 1.
    Source: exact; Machine Learning Systems, chapter "Model Serving", queueing.
    """
    _stable(utilization, 1)
    return service_seconds / (1.0 - utilization)


def mm1_response_quantile_seconds(
    service_seconds: float, utilization: float, percentile: float
) -> float:
    """Percentile of the time in an M/M/1 system, which is exponential, in seconds.

    Raises: UnstableQueueError when ρ ≥ 1.
    Source: exact; M. Harchol-Balter, Performance Modeling and Design of Computer Systems (2013),
    chapter 13.
    """
    beyond = beyond_share(percentile)
    return -math.log(beyond) * mm1_response_seconds(service_seconds, utilization)


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


def mmc_wait_quantile_seconds(
    service_seconds: float, offered_load: float, server_count: int, percentile: float
) -> float:
    """Percentile of the wait in M/M/c first come, first served: 0, or exponential beyond that.

    Source: exact: those who wait, Erlang C of all, wait exponentially with the rate c·μ − λ (D.
    Gross and C. M. Harris, Fundamentals of Queueing Theory, M/M/c).
    """
    waiting = erlang_c(offered_load, server_count)
    beyond = beyond_share(percentile)
    if waiting <= beyond:
        return 0.0
    return math.log(waiting / beyond) * service_seconds / (server_count - offered_load)


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


def little_in_system(rate_per_second: float, time_seconds: float) -> float:
    """Mean number in system, λ·W.

    Source: J. D. C. Little, A proof for the queuing formula L = λW, Operations Research 9 (1961).
    """
    return rate_per_second * time_seconds


def light_tail_p99_seconds(mean_seconds: float, deviation_seconds: float) -> float:
    """99th percentile of a light-tailed time, E[T] + 2.33·σ, where there are no samples.

    Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", tail rules:
    the 99 % deviate of a normal law.
    """
    return mean_seconds + LIGHT_TAIL_P99_DEVIATES * deviation_seconds


def exponential_tail_p99_seconds(mean_seconds: float) -> float:
    """99th percentile of an exponential-like time, 4.6·E[T], where there are no samples.

    Source: Machine Learning Systems (V. J. Reddi), appendix "Inference Foundations", tail rules;
    exact for an exponential law.
    """
    return EXPONENTIAL_P99_MEANS * mean_seconds


def any_of_many_slow_probability(slow_probability: float, fan_out_count: int) -> float:
    """Probability that at least one of many parallel calls is slow, 1 − (1 − p)^n.

    Source: J. Dean and L. A. Barroso, The Tail at Scale, CACM 56 (2013).
    """
    return 1.0 - (1.0 - slow_probability) ** fan_out_count


def replica_count_for_utilization(
    arrival_rate_per_second: float, replica_rate_per_second: float, utilization_target: float
) -> int:
    """Least replicas that keep utilization at or below the target, ⌈λ/(ρ*·μ)⌉, at least 1.

    Source: "Serving and Systems Tradeoffs", replicas for a utilization target.
    """
    if not 0 < utilization_target <= 1:
        raise InvalidInputError("utilization_target", utilization_target, "(0, 1]")
    exact = arrival_rate_per_second / (utilization_target * replica_rate_per_second)
    return max(1, math.ceil(exact * (1.0 - 1e-12)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    """Replicas for the load, with headroom, and utilization after failures.

    base_count: for the utilization target alone. replica_count: with headroom.
    utilization, utilization_after_failure: with all, and with one fewer. survives_failure: the
    target still holds with one fewer.
    """

    base_count: int
    replica_count: int
    utilization: float
    utilization_after_failure: float
    survives_failure: bool


def capacity_plan(
    arrival_rate_per_second: float,
    replica_rate_per_second: float,
    utilization_target: float,
    headroom_ratio: float,
) -> CapacityPlan:
    """Capacity plan for a peak load.

    headroom_ratio: factor on the base count, 1 or more.
    Source: Machine Learning Systems, chapter "Model Serving", capacity planning.
    """
    if not headroom_ratio >= 1.0:
        raise InvalidInputError("headroom_ratio", headroom_ratio, "1 or more")
    base = replica_count_for_utilization(
        arrival_rate_per_second, replica_rate_per_second, utilization_target
    )
    count = math.ceil(base * headroom_ratio * (1.0 - 1e-12))
    after = (
        arrival_rate_per_second / ((count - 1) * replica_rate_per_second) if count > 1 else math.inf
    )
    return CapacityPlan(
        base_count=base,
        replica_count=count,
        utilization=arrival_rate_per_second / (count * replica_rate_per_second),
        utilization_after_failure=after,
        survives_failure=after <= utilization_target,
    )


def poisson_quantile(mean: float, probability: float) -> int:
    """Least k with P(X ≤ k) ≥ probability for a Poisson variable.

    Source: S. D. Poisson (1837); the distribution function is Cephes' `pdtr`, an incomplete gamma
    function. Exact.
    """
    spread = math.sqrt(mean)
    count = max(0, math.floor(mean - 10.0 * spread))
    while pdtr(count, mean) < probability:
        count += 1
    return count
