"""What the experiments' command lines have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from trained_models import CACHE, Zoo

RESULTS = Path(__file__).parent / "results"


def parser_of(description: str | None, epochs: int) -> argparse.ArgumentParser:
    """The arguments that all experiments have.

    Args:
        description: Of the script; its first line is taken.
        epochs: How long models train if nobody says.

    Returns:
        The parser.
    """
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--data-dir", type=Path, help="by default what LAE_DATA says")
    parser.add_argument("--cache", type=Path, help="folder for trained models")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    parser.add_argument("--epochs", type=int, default=epochs, help="of all models")
    return parser


def zoo_of(args: argparse.Namespace) -> Zoo:
    """The models of a command line; those of smoke runs are kept with its results.

    From here on products of matrices may use whatever is fastest. On a processor
    without units for bfloat16 matrices these are oneDNN's kernels in single
    precision, which take half the time of the usual ones where those know no AVX-512.

    Args:
        args: The command line.

    Returns:
        The zoo.
    """
    torch.set_float32_matmul_precision("medium")
    inside = args.out / "cache" if args.smoke else CACHE
    return Zoo(args.cache or inside, args.data_dir)
