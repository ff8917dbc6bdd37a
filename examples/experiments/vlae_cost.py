"""What a training step of VLAE costs against one of a VAE, as a ratio in one run.

python examples/experiments/vlae_cost.py            # on an idle machine
python examples/experiments/vlae_cost.py --smoke    # seconds, for tests; proves nothing
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from comparing import Contender, interleaved, ratio, write_json
from latent_training import BATCH, LR, Images, build

RESULTS = Path(__file__).parent / "results"


def step_of(name: str, n_updates: int, code: int, images: Images) -> Contender:
    """One optimiser step on one batch.

    Args:
        name: The model.
        n_updates: T.
        code: The size of a code.
        images: The data, of which the first batch is used.

    Returns:
        The step.
    """
    model = build(name, n_updates, images, code=code)
    optimizer = torch.optim.Adam(model.parameters(), LR, fused=True)
    x = images.train[:BATCH]

    def step() -> None:
        optimizer.zero_grad()
        (-model.elbo(x).mean()).backward()
        optimizer.step()

    return step


def main() -> None:
    """Print the ratios and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="seconds, proves nothing")
    parser.add_argument("--rounds", type=int, default=31, help="rounds that count")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for results")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    rounds, updates = (1, (1,)) if args.smoke else (args.rounds, (0, 1, 2, 4, 8))
    rows = []
    for binary in (False, True):
        noise = torch.rand(2 * BATCH, 784)
        images = Images.prepared(noise.round(), noise[:12], binary, args.seed)
        for code in (16,) if args.smoke else (16, 64):
            steps = {"vae": step_of("vae", 0, code, images)}
            for t in updates:
                steps[f"T={t}"] = step_of("vlae", t, code, images)
            times = interleaved(steps, rounds, f"code {code}")
            pixels = "bernoulli" if binary else "gaussian"
            for name in list(steps)[1:]:
                value = ratio(times, name, "vae")
                rows.append({"pixels": pixels, "code": code, "T": name, "ratio": value})
                print(f"{pixels} code {code}: VLAE {name} / VAE {value:6.2f}")
    write_json(args.out / "vlae_cost.json", {"seed": args.seed, "rows": rows})


if __name__ == "__main__":
    main()
