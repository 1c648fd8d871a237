"""Names the shard in each line of the log that is about one of its resources."""

import logging

from servingslo.adapters.kubernetes.api.fence import shard_of_context


def name_shard(record: logging.LogRecord) -> bool:
    """Add the shard whose Lease guards the writes meanwhile; outside of any the line stays."""
    shard = shard_of_context()
    if shard is not None:
        record.msg, record.args = f"{record.getMessage()} shard={shard}", None
    return True
