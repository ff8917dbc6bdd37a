"""What hosts do to a model behind our back, suspended: rounding, compiling, storing."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from backpack import disable
from torch import Tensor
from torch.nn import Module


def autocasts(x: Tensor) -> bool:
    """Whether autocast is on.

    Args:
        x: A tensor of the device that is meant.

    Returns:
        True if layers round what they compute.
    """
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Compute exactly for a while.

    Args:
        x: A tensor of the device that is meant.

    Returns:
        A context.
    """
    return (
        torch.autocast(x.device.type, enabled=False) if autocasts(x) else nullcontext()
    )


def uncompiled(modules: Iterable[Module]) -> AbstractContextManager[object]:
    """Let modules run as they are written, so that hooks on them see every call.

    Args:
        modules: All of a model's.

    Returns:
        A context.
    """
    compiled = any(
        m._compiled_call_impl is not None or "_orig_mod" in m._modules for m in modules
    )
    # Older versions of torch have no such way.
    if compiled and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return nullcontext()


class _Storing:
    """How many contexts suspend BackPACK's storing, over all threads."""

    guard = threading.Lock()
    suspensions = 0
    context = disable()


@contextmanager
def without_storing() -> Iterator[None]:
    """Let BackPACK keep nothing of forward passes.

    BackPACK's own ``disable`` restores what it found. If two threads overlap, the
    last one to leave finds what the other one had set, and storing stays off for good.

    Yields:
        Nothing.
    """
    with _Storing.guard:
        if _Storing.suspensions == 0:
            _Storing.context.__enter__()
        _Storing.suspensions += 1
    try:
        yield
    finally:
        with _Storing.guard:
            _Storing.suspensions -= 1
            if _Storing.suspensions == 0:
                _Storing.context.__exit__(None, None, None)
