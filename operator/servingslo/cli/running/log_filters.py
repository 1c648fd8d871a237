"""What each line of `servingslo run` says in addition, and lines that would only repeat its end."""

import logging

import kopf

from servingslo.adapters.kubernetes.api.fence import shard_of_context


def name_shard(record: logging.LogRecord) -> bool:
    """Add the shard whose Lease guards the writes meanwhile; outside of any the line stays."""
    shard = shard_of_context()
    if shard is not None:
        record.msg, record.args = f"{record.getMessage()} shard={shard}", None
    return True


def keep_once(record: logging.LogRecord) -> bool:
    """Leave out that a task lost its credentials: each does, and the process ends with the reason.

    So it is after `helm uninstall`, while the pod of an account that is gone still runs.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], kopf.LoginError)
