"""Time and memory, measured so that a noisy machine does little harm."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

Contender = Callable[[], object]


def interleaved(
    contenders: dict[str, Contender], rounds: int, label: str = "", warm_up: int = 3
) -> dict[str, list[float]]:
    """Run all contenders in turn, round after round.

    Args:
        contenders: What to time, by name.
        rounds: How many rounds count.
        label: What the progress bar says.
        warm_up: How many more come first.

    Returns:
        Seconds of each round by name.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in tqdm(range(rounds + warm_up), desc=label, leave=False, disable=None):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: seconds[warm_up:] for name, seconds in times.items()}


def ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """How much longer one contender takes than another.

    Args:
        times: What ``interleaved`` returned.
        one: The numerator.
        other: The denominator.

    Returns:
        The median of the rounds' ratios.
    """
    pairs = zip(times[one], times[other], strict=True)
    return statistics.median(a / b for a, b in pairs)


def peak_memory(run: Contender) -> int:
    """How much memory a call needs at most beyond what was there before.

    Args:
        run: The call.

    Returns:
        Bytes, counted from torch's own record of every allocation.
    """
    run()
    with _quiet_stderr():
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            run()
    profiler: Any = record.profiler
    events = profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes):
        held += change
        peak = max(peak, held)
    return peak


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    # torch's profiler writes lines there from C++ that say nothing.
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power with which values grow.

    Args:
        sizes: What was varied.
        values: What was measured.

    Returns:
        The slope of a straight line through the points on log-log paper.
    """
    slope, _ = statistics.linear_regression(
        [math.log(s) for s in sizes], [math.log(v) for v in values]
    )
    return slope


def environment() -> dict[str, object]:
    """What a result has to be read with.

    Returns:
        Versions, threads, processor and the command.
    """
    packages = ("torch", "backpack-for-pytorch", "laplace-torch", "stochman")
    script = Path(sys.argv[0])
    # Where data and results are on this machine is nobody's business.
    path = re.compile("(^|=)[/.~]")
    arguments = ["..." if path.search(a) else a for a in sys.argv[1:]]
    return {
        "command": shlex.join(["python", script.name, *arguments]),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "matrix_products": torch.get_float32_matmul_precision(),
        **{name: version(name) for name in packages},
    }


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write results together with the environment.

    Args:
        path: Where to.
        content: The results.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    everything = {"environment": environment(), **content}
    part = path.with_suffix(f".{os.getpid()}")  # who stops here loses nothing
    part.write_text(json.dumps(everything, indent=2) + "\n")
    part.replace(path)
