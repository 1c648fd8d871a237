"""The exception hierarchy. Adapters translate library exceptions into these and chain them."""


class ServingSLOError(Exception):
    """Base class of all errors that this package raises on purpose."""


# Of a value in a message: a file's first line, or a text in a resource, may be of any length.
_MOST_CHARACTERS = 300


class InvalidInputError(ServingSLOError, ValueError):
    """A user's value is outside its allowed range; names field, value and range."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        # The form in JSON, YAML and on the command line.
        written = str(value).lower() if isinstance(value, bool) else repr(value)
        if len(written) > _MOST_CHARACTERS:
            written = f"{written[:_MOST_CHARACTERS]}…"
        problem = " is missing" if value is None else f": {written} is not allowed"
        super().__init__(f"{field}{problem}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild it from its parts, so that an error of a worker process reaches its parent."""
        return type(self), (self.field, self.value, self.allowed)


class InvalidSpecError(InvalidInputError):
    """A spec with one or more bad values; the message names all, the attributes the first."""

    def __init__(self, problems: tuple[InvalidInputError, ...]) -> None:
        first = problems[0]
        super().__init__(first.field, first.value, first.allowed)
        self.args = ("; ".join(str(problem) for problem in problems),)
        self.problems = problems

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild it from its problems."""
        return type(self), (self.problems,)


class UnknownRuntimeError(InvalidInputError):
    """The runtime profile is not in the catalogue."""


class LabMissingError(ServingSLOError):
    """A command needs servingslo-lab, which is not installed; names the command."""

    def __init__(self, command: str) -> None:
        super().__init__(
            f"servingslo {command} is part of servingslo-lab, which is not installed; "
            "install it from a checkout of ServingSLO: pip install . ./lab"
        )
        self.command = command

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild it from its command."""
        return type(self), (self.command,)


class MetricsError(ServingSLOError):
    """Metrics could not be read as requested."""


class MetricsUnavailableError(MetricsError):
    """Prometheus did not answer, refused, or sent an invalid answer."""


class ReadingTooSlowError(MetricsUnavailableError):
    """The queries of one reading did not all end within the reading's timeout."""


class AnswerTooLargeError(MetricsUnavailableError):
    """An answer has more bytes than are read of one. body: those that were read."""

    def __init__(self, message: str, body: bytes = b"") -> None:
        super().__init__(message)
        self.body = body


class QueryRefusedError(MetricsUnavailableError):
    """Prometheus does not evaluate this query; a retry does not help."""


class ImplausibleMetricsError(MetricsError):
    """Prometheus' answer contradicts its earlier answers."""


class ClusterError(ServingSLOError):
    """The Kubernetes API could not be used as requested."""


class ClusterUnavailableError(ClusterError):
    """The API server did not answer in time or answered with a server error of its own."""


class NotFoundError(ClusterError):
    """The object does not exist."""


class NoScaleSubresourceError(ClusterError):
    """The kind exists but has no /scale subresource."""


class PermissionDeniedError(ClusterError):
    """RBAC refuses the request (403)."""


class WriteConflictError(ClusterError):
    """A precondition of the write no longer holds (409, or 422 of a JSON Patch test)."""


class InvalidNameError(ClusterError, InvalidInputError):
    """A name is no segment of the API's paths, so that no object has it; nothing was asked."""


class InvalidObjectError(ClusterError):
    """The API server refused the object as invalid (422 that is no failed precondition)."""


class NotLeaderError(ClusterError):
    """Writes are not allowed: this process has no valid lease, or another operator acts there."""


class LimitNotEnforceableError(ClusterError):
    """A bound in that object would not apply to the workload only; the message says why."""


class EngineRefusedError(ClusterError):
    """An engine's own API refused a request, or sent an invalid answer. status: of its answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ArgumentsNotUnderstoodError(ServingSLOError):
    """A container's arguments cannot be changed without guessing; the message says why."""
