"""What the engine costs: ratios in one run against a plain pass and against peers.

python examples/benchmarks/engine.py            # make bench
python examples/benchmarks/engine.py --smoke    # seconds, for tests; proves nothing
"""

from __future__ import annotations

from pathlib import Path

import torch
from backpack.extensions import DiagGGNExact, DiagGGNMC
from contenders import alone, hooked, hooked_flat, plain, stochman
from measuring import exponent, interleaved, peak_memory, ratio, write_json
from models import conv_stack, fashion_autoencoder, image_autoencoder
from table import Row, Table, arguments
from torch import Tensor

from lae_backpack import DiagGGNApprox, DiagGGNMixed
from lae_backpack.curvature.policy import DEFAULT_MAX_DENSE_DIM

RESULTS = Path(__file__).parent / "results"
BATCH = 8
STACKS = [(3, 32), (32, 64), (3, 128), (3, 256)]


def batch_for(channels: int, pixels: int, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    """A batch of noise and a target of its shape.

    Args:
        channels: The images' channels.
        pixels: Their height and width.
        batch: How many.

    Returns:
        Input and target.
    """
    return tuple(torch.randn(2, batch, channels, pixels, pixels))  # pyright: ignore


def against_a_plain_pass(rounds: int, smoke: bool) -> list[Row]:
    """Gradient + approx in one pass, and curvature alone.

    Args:
        rounds: How many rounds count.
        smoke: Only the smallest size.

    Returns:
        The rows.
    """
    rows = []
    for channels, pixels in STACKS[:1] if smoke else STACKS:
        model, (x, target) = conv_stack(channels), batch_for(channels, pixels)
        name = f"{channels} ch {pixels}x{pixels}"
        contenders = {
            "plain": plain(model, x, target),
            "joint": hooked(model, x, target, DiagGGNApprox),
            "alone": alone(model, x, target),
            "nnj": stochman(model, x),
            "mc": hooked_flat(model, x, target, DiagGGNMC),
        }
        times = interleaved(contenders, rounds, name)
        limited = (channels, pixels) in {(3, 128), (32, 64)}
        rows += [
            Row(
                f"{name}: gradient + approx / plain forward+backward",
                ratio(times, "joint", "plain"),
                1.85 if limited else None,
            ),
            Row(
                f"{name}: curvature alone / plain forward+backward",
                ratio(times, "alone", "plain"),
                1.1 if limited else None,
            ),
            Row(
                f"{name}: curvature alone / stochman nnj",
                ratio(times, "alone", "nnj"),
                1.0,
            ),
            Row(
                f"{name}: BackPACK DiagGGNMC / gradient + approx",
                ratio(times, "mc", "joint"),
                1.8 if channels == 32 else None,
                at_least=True,
            ),
        ]
    return rows


def against_the_exact_diagonal(smoke: bool) -> list[Row]:
    """Approx against BackPACK's ``DiagGGNExact``.

    Args:
        smoke: A smaller image.

    Returns:
        The rows.
    """
    pixels = 8 if smoke else 32
    model, (x, target) = conv_stack(3), batch_for(3, pixels)
    approx = hooked(model, x, target, DiagGGNApprox)
    exact = hooked_flat(model, x, target, DiagGGNExact)
    passes = 10  # one alone would be lost in the exact one's wake

    def several() -> None:
        for _ in range(passes):
            approx()

    times = interleaved({"approx": several, "exact": exact}, 3, "exact")
    slower = passes * ratio(times, "exact", "approx")
    memory = peak_memory(exact) / peak_memory(approx)
    name = f"3 ch {pixels}x{pixels}: BackPACK DiagGGNExact / gradient + approx"
    return [
        Row(f"{name}, time", slower, 500, at_least=True),
        Row(f"{name}, memory", memory, 50, at_least=True),
    ]


def mixed_against_approx(rounds: int, smoke: bool) -> list[Row]:
    """What the default limit costs on the Fashion-MNIST autoencoder.

    Args:
        rounds: How many rounds count.
        smoke: A small batch.

    Returns:
        The rows.
    """
    rows = []
    model = fashion_autoencoder(4)
    for batch in (2,) if smoke else (8, 64):
        x, _ = batch_for(1, 28, batch)
        contenders = {
            "approx": hooked(model, x, x, DiagGGNApprox),
            "mixed": hooked(model, x, x, DiagGGNMixed),
            "approx alone": alone(model, x, x),
            "mixed alone": alone(model, x, x, DEFAULT_MAX_DENSE_DIM),
            "256 alone": alone(model, x, x, 256),
        }
        times = interleaved(contenders, rounds, "mixed")
        name = f"FMNIST conv width/4, N={batch}: mixed / approx"
        rows += [
            Row(f"{name}, in one pass", ratio(times, "mixed", "approx"), 2.0),
            Row(f"{name}, alone", ratio(times, "mixed alone", "approx alone"), 2.0),
            # The default is dense at the code of this net alone, 256 in five places.
            Row(f"{name}, limit 256", ratio(times, "256 alone", "approx alone")),
        ]
    return rows


def growth_with_pixels(rounds: int, smoke: bool) -> tuple[list[Row], dict[str, object]]:
    """Time and peak memory of approx and mixed from 32x32 to 256x256.

    Args:
        rounds: How many rounds count.
        smoke: Two small sizes.

    Returns:
        The rows, and the measurements behind them.
    """
    sizes = [16, 32] if smoke else [32, 64, 128, 256]
    seconds: dict[str, list[float]] = {"approx": [], "mixed": []}
    peaks: dict[str, list[float]] = {"approx": [], "mixed": []}
    for pixels in sizes:
        model, (x, _) = image_autoencoder(pixels), batch_for(3, pixels)
        contenders = {
            "approx": hooked(model, x, x, DiagGGNApprox),
            "mixed": hooked(model, x, x, DiagGGNMixed),
        }
        times = interleaved(contenders, rounds, f"{pixels} pixels")
        for name, run in contenders.items():
            seconds[name].append(sorted(times[name])[rounds // 2])
            peaks[name].append(peak_memory(run))
    pixels = [n * n for n in sizes]
    rows = [
        Row(f"exponent of {what} in pixels, {name}", exponent(pixels, values), 1.1)
        for what, measured in (("time", seconds), ("peak memory", peaks))
        for name, values in measured.items()
    ]
    return rows, {"pixels": pixels, "seconds": seconds, "bytes": peaks}


def main() -> None:
    """Print the table and write the results."""
    args = arguments(__doc__, RESULTS)
    torch.manual_seed(args.seed)
    rounds = 1 if args.smoke else args.rounds
    table = Table()
    table.show(against_a_plain_pass(rounds, args.smoke))
    table.show(against_the_exact_diagonal(args.smoke))
    table.show(mixed_against_approx(rounds, args.smoke))
    grown, measured = growth_with_pixels(rounds, args.smoke)
    table.show(grown)
    content = {"seed": args.seed, "rows": table.content(), "growth": measured}
    write_json(args.out / "engine.json", content)


if __name__ == "__main__":
    main()
