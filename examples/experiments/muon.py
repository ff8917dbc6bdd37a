"""Muon for large matrices, Adam for all else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from lae_backpack.posterior.online.optimizers import adam

MUON_LR = 0.02


class MuonAndAdam(Optimizer):
    """Muon for the matrices between hidden layers, Adam for all else.

    Matrices with a side of one or two numbers, as at a small code, are Adam's, too.
    """

    def __init__(self, params: Sequence[Tensor], lr: float) -> None:
        """Share the parameters out.

        Args:
            params: All of them.
            lr: Adam's learning rate.

        Raises:
            ImportError: If torch has no Muon yet.
        """
        if not hasattr(torch.optim, "Muon"):
            raise ImportError(
                f"The recipe Muon needs torch 2.9 or newer, got {torch.__version__}. "
                "Update torch, or use the recipe Adam."
            )
        params = list(params)
        super().__init__(params, {"lr": lr})
        wide = [p for p in params if p.dim() == 2 and min(p.shape) > 2]
        others = [p for p in params if all(p is not matrix for matrix in wide)]
        muon = torch.optim.Muon(wide, lr=MUON_LR, weight_decay=0.0)
        self._parts = muon, adam(others, lr)
        self._take_groups()

    def _take_groups(self) -> None:
        # The parts' own, so that whoever changes a rate here changes it there.
        self.param_groups = [g for part in self._parts for g in part.param_groups]

    @override
    def step(self, closure: Any = None) -> None:
        del closure
        for part in self._parts:
            part.step()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self._parts]}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self._parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._take_groups()
