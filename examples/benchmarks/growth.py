"""Curvature of an autoencoder from 16x16 to 256x256 pixels, beside a plain backward.

make growth
python examples/benchmarks/growth.py --help
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from contenders import hooked, plain
from measuring import Contender, exponent, interleaved, peak_memory, write_json
from models import image_autoencoder
from tqdm import tqdm

from lae_backpack import DiagGGNApprox, DiagGGNMixed

STYLES = {
    "plain backward": ("0.45", "o", "-"),
    "approx": ("#0072b2", "s", "-"),
    "mixed": ("#e69f00", "^", "--"),
    "exact": ("#d55e00", "D", ":"),
}
# Beyond this the exact diagonal takes minutes, then more memory than there is.
EXACT_UP_TO = 16


def contenders_at(pixels: int, batch: int) -> dict[str, Contender]:
    """What is compared at one image size.

    Args:
        pixels: Height and width.
        batch: Images per batch.

    Returns:
        One pass of each.
    """
    model = image_autoencoder(pixels)
    x = torch.rand(batch, 3, pixels, pixels)
    contenders = {
        "plain backward": plain(model, x, x),
        "approx": hooked(model, x, x, DiagGGNApprox),
        "mixed": hooked(model, x, x, DiagGGNMixed),
    }
    if pixels <= EXACT_UP_TO:
        contenders["exact"] = hooked(model, x, x, lambda: DiagGGNMixed(None))
    return contenders


Series = dict[str, list[tuple[int, float]]]


def measure(sizes: list[int], batch: int, rounds: int) -> tuple[Series, Series]:
    """Time and memory at all sizes.

    Args:
        sizes: Heights and widths.
        batch: Images per batch.
        rounds: How many rounds count.

    Returns:
        Seconds and bytes, by contender, as pairs of pixels and value.
    """
    seconds: Series = {name: [] for name in STYLES}
    peaks: Series = {name: [] for name in STYLES}
    for size in tqdm(sizes, desc="image sizes", disable=None):
        contenders = contenders_at(size, batch)
        for name, taken in interleaved(contenders, rounds, f"{size}x{size}").items():
            seconds[name].append((size * size, statistics.median(taken)))
        for name, run in contenders.items():
            peaks[name].append((size * size, float(peak_memory(run))))
    return seconds, peaks


def table(seconds: Series, peaks: Series) -> str:
    """Both measurements as text.

    Args:
        seconds: Seconds by contender.
        peaks: Bytes by contender.

    Returns:
        One line per image size, and the exponents.
    """
    names = list(STYLES)
    lines = [f"{'':>9}  " + "".join(f"{name:>24}" for name in names)]
    for i, (pixels, _) in enumerate(seconds[names[0]]):
        side = round(pixels**0.5)
        cells = [
            f"{1e3 * seconds[n][i][1]:9.1f} ms {peaks[n][i][1] / 2**20:8.1f} MB"
            if i < len(seconds[n])
            else "-"
            for n in names
        ]
        lines.append(f"{f'{side}x{side}':>9}  " + "".join(f"{c:>24}" for c in cells))
    lines.append("memory grows with the power of the number of pixels (1 = linear):")
    powers = {n: exponent(*zip(*peaks[n], strict=True)) for n in names[:3]}
    lines.append("  " + ", ".join(f"{n} {p:.2f}" for n, p in powers.items()))
    return "\n".join(lines)


def draw(seconds: Series, peaks: Series, path: Path) -> None:
    """Draw both measurements on log-log paper.

    Args:
        seconds: Seconds by contender.
        peaks: Bytes by contender.
        path: Where to write the figure.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for ax, series, unit, scale in (
        (axes[0], seconds, "seconds per pass", 1.0),
        (axes[1], peaks, "peak memory in MB", 2.0**-20),
    ):
        for name, points in series.items():
            if points:
                colour, marker, line = STYLES[name]
                pixels, values = zip(*points, strict=True)
                scaled = [scale * v for v in values]
                ax.loglog(pixels, scaled, line, color=colour, marker=marker, label=name)
        ticks = [pixels for pixels, _ in series["approx"]]
        labels = [f"{round(p**0.5)}²" for p in ticks]
        ax.set_xticks(ticks, labels)
        ax.minorticks_off()
        ax.set(xlabel="pixels", ylabel=unit)
        ax.grid(alpha=0.3)
    axes[0].legend(frameon=False)
    figure.suptitle(
        "Gradient and GGN diagonal of a convolutional autoencoder, one pass"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Measure, print the table, write JSON and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="two sizes, for tests")
    parser.add_argument("--batch", type=int, default=4, help="images per batch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--seed", type=int, default=0, help="of weights and images")
    parser.add_argument("--out", type=Path, default=Path("report"), help="folder")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    sizes = [8, 16] if args.smoke else [16, 32, 64, 128, 256]
    rounds = 1 if args.smoke else args.rounds
    seconds, peaks = measure(sizes, args.batch, rounds)
    print(table(seconds, peaks))
    content = {"seed": args.seed, "seconds": seconds, "bytes": peaks}
    write_json(args.out / "growth.json", content)
    draw(seconds, peaks, args.out / "growth.png")
    print(f"figure: {args.out / 'growth.png'}")


if __name__ == "__main__":
    main()
