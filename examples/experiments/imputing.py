"""Table 3 and figure 11 of the paper: digits of which only the lower half is seen.

python examples/experiments/imputing.py           # three seeds; rows say how long
python examples/experiments/imputing.py --smoke   # seconds, proves nothing

Missing pixels are filled in by the two-stage procedure, and compared with the *clean*
image; the published numbers compare with the image whose missing half is noise. A
classifier, which was trained on other images and sees all fillings of an image, says
which digit it is; how many different ones it sees tells how multi-modal the fillings
are. The whole image is missing for generation. Finished runs are not repeated.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from command_line import parser_of, zoo_of
from digit_classifier import probabilities, trained_classifier
from experiment_images import Part
from resuming import Row, run_missing
from torch import Tensor, nn
from trained_models import MODELS, Setting, Zoo, networks_of

from lae_backpack.downstream.calibration import calibration_errors
from lae_backpack.downstream.imputation import generate, impute
from lae_backpack.downstream.plots.mosaic import Mosaic, as_pictures, grey, seen_only

ALONE = "classifier, missing half black"
WHOLE = "classifier, whole image"
SIDE = 28
CHUNK = 500  # images filled in at once
N_SHOWN = 5


def lower_half() -> Tensor:
    """What is seen.

    Returns:
        True there.  # [784]
    """
    observed = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    observed[SIDE // 2 :] = True
    return observed.flatten()


def classified(chances: Tensor, labels: Tensor) -> Row:
    """How right a classifier is, and how sure.

    Args:
        chances: Probabilities, of all fillings together.  # [N, 10]
        labels: The digits.  # [N]

    Returns:
        Accuracy and calibration.
    """
    right = (chances.argmax(1) == labels).double().mean().item()
    return {"accuracy": right, **asdict(calibration_errors(chances, labels))}


def filled_in(model: Any, test: Part, judge: nn.Module, key: Row) -> Row:
    """Fill in digits, and have them judged.

    Args:
        model: The model.
        test: The digits, flat.
        judge: The classifier.
        key: What is run.

    Returns:
        Errors of the missing half, summed over its pixels, and what the judge says.
    """
    generator = torch.Generator().manual_seed(key["seed"])
    count, observed = networks_of(model, key["networks"]), lower_half()
    chances, classes, has_truth, of_samples, of_mean = [], [], [], [], []
    for start in range(0, len(test.x), CHUNK):
        part = test.rows(start, start + CHUNK)
        found = impute(model, part.x, observed, count, count, generator=generator)
        samples = found.samples.flatten(0, 1)  # [M * S, N, 784]
        of_samples.append((samples - part.x).square().sum(2).mean(0))
        of_mean.append((samples.mean(0) - part.x).square().sum(1))
        chances.append(probabilities(judge, samples).mean(0))
        digits = probabilities(judge, found.mean).argmax(2)  # [M, N]
        seen = nn.functional.one_hot(digits, 10).amax(0)  # [N, 10]
        classes.append(seen.sum(1))
        has_truth.append(seen.gather(1, part.labels[:, None])[:, 0])
    return {
        "error_of_samples": torch.cat(of_samples).mean().item(),
        "error_of_mean": torch.cat(of_mean).mean().item(),
        "classes_seen": torch.cat(classes).double().mean().item(),
        "truth_among_them": torch.cat(has_truth).double().mean().item(),
        **classified(torch.cat(chances), test.labels),
    }


def generated(model: Any, judge: nn.Module, key: Row) -> Row:
    """Make images from noise, and have them judged.

    Args:
        model: The model.
        judge: The classifier.
        key: What is run.

    Returns:
        How many digits there are among them, and how sure the judge is.
    """
    generator = torch.Generator().manual_seed(key["seed"])
    images = generate(model, (SIDE * SIDE,), key["generated"], generator=generator)
    sureness, digits = probabilities(judge, images).max(1)
    return {
        "digits_generated": len(digits.unique()),
        "confidence_generated": sureness.mean().item(),
        "spread_generated": images.std(0).mean().item(),
    }


def measure(key: Row, zoo: Zoo) -> list[Row]:
    """Ask one model.

    Args:
        key: What is run.
        zoo: Has the models.

    Returns:
        One row.
    """
    setting = Setting(key["data"], key["net"], key["epochs"], key["seed"])
    images = zoo.images(setting.data)
    file = (
        zoo.folder
        / f"classifier-{setting.data}-{key['judge_epochs']}-{setting.seed}.pt"
    )
    judge = trained_classifier(images.train, key["judge_epochs"], setting.seed, file)
    part = images.test.rows(None, key["test_images"])
    test = Part(part.x.flatten(1), part.labels)
    if key["model"] in (ALONE, WHOLE):
        x = test.x * lower_half() if key["model"] == ALONE else test.x
        return [classified(probabilities(judge, x), test.labels)]
    model = zoo.model(key["model"], setting)
    return [{**filled_in(model, test, judge, key), **generated(model, judge, key)}]


def planned(args: Any) -> list[Row]:
    """All runs.

    Args:
        args: The command line.

    Returns:
        One key for each.
    """
    about = {"data": "mnist", "net": "linear", "epochs": args.epochs}
    about |= {"data": "digits", "net": "small"} if args.smoke else {}
    names = ("networks", "test_images", "generated", "judge_epochs")
    about |= {name: getattr(args, name) for name in names}
    return [
        {"model": model, **about, "seed": seed}
        for seed in args.seeds
        for model in (WHOLE, ALONE, *MODELS)
    ]


def draw_fillings(zoo: Zoo, setting: Setting, path: Path) -> None:
    """Draw figure 11: what each model makes of some digits, and of nothing.

    Args:
        zoo: Has the models.
        setting: Which ones.
        path: The figure's file.
    """
    x = zoo.images(setting.data).test.x[:2].flatten(1)
    observed, wide = lower_half(), N_SHOWN + 1  # an empty column after each group
    n_columns = 3 * wide - 1
    figure, ax = plt.subplots(figsize=(0.72 * n_columns + 2, 0.78 * len(MODELS) + 1.2))
    mosaic = Mosaic(ax, len(MODELS) + 1, n_columns, (SIDE, SIDE))

    def put(row: int, column: int, picture: Tensor) -> None:
        mosaic.put(row, column, picture.clamp(0, 1), **grey(picture))

    masks = as_pictures(observed[None].expand_as(x), "observed") > 0.5
    for group, picture in enumerate(as_pictures(x, "x")):
        put(0, group * wide, picture)
        put(0, group * wide + 1, seen_only(picture, masks[group]))
    for row, name in enumerate(MODELS, start=1):
        model = zoo.model(name, setting)
        generator = torch.Generator().manual_seed(setting.seed)
        found = impute(model, x, observed, N_SHOWN, 5, generator=generator).mean
        made = generate(model, (SIDE * SIDE,), N_SHOWN, generator=generator)
        for group, images in enumerate((found[:, 0], found[:, 1], made)):
            for column, picture in enumerate(as_pictures(images, "images")):
                put(row, group * wide + column, picture)
    mosaic.name_rows(["image, and what is seen", *MODELS])
    titles = [""] * n_columns
    titles[wide * 2 + N_SHOWN // 2] = "from noise"
    for group in range(2):
        titles[wide * group + N_SHOWN // 2] = "filled in by several networks"
    mosaic.name_columns(titles)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Run what is missing, and draw some of it."""
    parser = parser_of(__doc__, epochs=20)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--networks", type=int, default=5, help="in each stage")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--generated", type=int, default=100, help="images from noise")
    parser.add_argument("--judge-epochs", type=int, default=3, help="of the classifier")
    args = parser.parse_args()
    if args.smoke:
        args.epochs, args.seeds, args.networks = 1, [0], 2
        args.test_images, args.generated, args.judge_epochs = 32, 4, 1
    zoo, runs = zoo_of(args), planned(args)
    run_missing(args.out / "imputing.json", runs, lambda key: measure(key, zoo))
    setting = Setting(runs[0]["data"], runs[0]["net"], args.epochs, args.seeds[0])
    draw_fillings(zoo, setting, args.out / "imputing.png")


if __name__ == "__main__":
    main()
