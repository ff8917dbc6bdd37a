"""Jobs of several processes, connected by gloo, that start within a tenth of a second.

A server imports everything once; ranks are its forks.
"""

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

_server = multiprocessing.get_context("forkserver")
# Optimisers import torch._dynamo when they are made, which takes seconds.
_server.set_forkserver_preload([
    "torch._dynamo",
    "lae_backpack",
    "tests.test_distributed_online",
])

TIMEOUT = 60  # seconds, for whole jobs


def run_on_ranks(n: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """Run ``job(*args)`` on n ranks; their results, or an error with all messages."""
    outcomes = outcomes_on_ranks(n, job, *args)
    failed = [f"rank {i}: {text}" for i, (ok, text) in enumerate(outcomes) if not ok]
    if failed:
        raise AssertionError("\n".join(failed))
    return [value for _, value in outcomes]


def outcomes_on_ranks(
    n: int, job: Callable[..., Any], *args: Any, patience: float = 20
) -> list[tuple[bool, Any]]:
    """As ``run_on_ranks``: per rank whether it came through, and result or message."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [_server.Pipe(duplex=False) for _ in range(n)]
    ranks = [
        _server.Process(
            target=_rank, args=(i, n, port, patience, pipes[i][1], job, args)
        )
        for i in range(n)
    ]
    for process in ranks:
        process.start()
    for _, sender in pipes:
        sender.close()  # so that a dead rank ends its pipe
    outcomes = []
    try:
        for receiver, _ in pipes:
            assert receiver.poll(TIMEOUT), "the job hangs"
            try:
                outcomes.append(pickle.loads(receiver.recv_bytes()))
            except EOFError:
                outcomes.append((False, "died"))
    finally:
        for process in ranks:
            process.join(5)
            if process.is_alive():
                process.kill()
    return outcomes


def _rank(
    i: int,
    n: int,
    port: int,
    patience: float,
    pipe: Any,
    job: Callable[..., Any],
    args: Any,
) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    try:
        dist.init_process_group(
            "gloo", rank=i, world_size=n, timeout=timedelta(seconds=patience)
        )
        _send(pipe, True, job(*args))
        dist.destroy_process_group()
    except BaseException as error:
        trace = "".join(traceback.format_tb(error.__traceback__)[-3:])
        _send(pipe, False, f"{type(error).__name__}: {error}\n{trace}")


def _send(pipe: Any, came_through: bool, value: Any) -> None:
    # By value: torch's own way shares memory, which ends with the process.
    pipe.send_bytes(pickle.dumps((came_through, value)))
