"""All runs of the results page, two at a time: what is there is not run again.

python examples/experiments/paper_set.py            # or: make experiments
python examples/experiments/paper_set.py --smoke    # a minute, proves nothing

Each process has one thread and writes results of its own. Models that several
experiments share are trained by whichever comes first. What was stopped goes on where
it was; results say how long it took.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
CHEAP = "none KFAC approx mixed calibrated"
LATE = (
    "--recipe Muon-late --conv-epochs 80 --data fashion-mnist "
    "--models autoencoder 'post hoc' online"
)
QUEUES = (
    (
        "table2.py --recipe Muon --epochs 120 --exact-every 100",
        f"table2.py --structures {CHEAP}",
        "longer_training.py",
    ),
    (
        "ood_scores.py --nets linear conv",
        "ood_scores.py --recipe Muon --nets conv/4 --networks 50",
        f"ood_scores.py --nets conv/4 {LATE}",
        "few_labels.py --seeds 0",
        "imputing.py --seeds 0",
        "latent_maps.py",
        "ablations.py",
    ),
)


def run(commands: tuple[str, ...], more: list[str], log: Path) -> int:
    """Run commands one after the other, until one fails.

    Args:
        commands: Scripts of this folder, with their arguments.
        more: Further arguments for each of them.
        log: Where their output goes.

    Returns:
        How many were not finished.
    """
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("a") as output:
        for done, command in enumerate(commands):
            print(f"{command}  (see {log})", flush=True)
            script = [sys.executable, *shlex.split(command), *more]
            streams = {"stdout": output, "stderr": subprocess.STDOUT}
            code = subprocess.run(script, cwd=HERE, env=one_thread, **streams)
            if code.returncode:
                print(f"failed: {command}", flush=True)
                return len(commands) - done
    return 0


def main() -> None:
    """Run both queues.

    Raises:
        SystemExit: If a run failed; the other queue is finished first.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="proves nothing")
    parser.add_argument("--out", type=Path, help="folder for results")
    args = parser.parse_args()
    more = ["--smoke"] if args.smoke else []
    more += ["--out", str(args.out.resolve())] if args.out else []
    logs = args.out or HERE / "cache"
    logs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(QUEUES)) as pool:
        started = [
            pool.submit(run, queue, more, logs / f"queue_{number}.log")
            for number, queue in enumerate(QUEUES)
        ]
        left = sum(queue.result() for queue in started)
    if left:
        raise SystemExit(f"{left} commands are not finished; run again to go on.")


if __name__ == "__main__":
    main()
