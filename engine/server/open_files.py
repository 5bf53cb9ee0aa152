"""How many connections the operating system lets this process have at a time: each is an open file."""

from __future__ import annotations

import logging
import resource

from engine.log import event

# Files besides the connections that are served: libraries, the core, connections just accepted; of few files, half.
SPARE = 256
_log = logging.getLogger(__name__)


def allow(connections: int) -> int:
    """Raise the limit of open files as far as these need it and the system lets it be; returns how many fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    fit = min(connections, max(1, soft - min(SPARE, soft // 2)))
    if fit < connections:
        message = f"--max-connections {connections} is more than {soft} open files (ulimit -n) allow; {fit} are taken"
        event(_log, logging.WARNING, "few_open_files", message, wanted=connections, taken=fit)
    return fit
