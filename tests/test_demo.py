"""The demo: its table, its page, and the page in a real browser."""

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import demo
import numpy as np
import pytest
import torch
from demo_data import photo_patches, small_digits
from explorer import Grid, as_png, atlas, explorer_data
from judging import rank_correlation
from PIL import Image
from scipy.stats import spearmanr

from tests.browser import Browser, find_browser

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "examples/demo/demo.py"
READY = "document.documentElement?.dataset.explorer === 'ready'"
FIGURES = {
    "latent-map": 1, "reconstructions": 1, "histograms": 4, "roc": 2, "variance": 2,
    "imputations": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("report")
    command = [sys.executable, str(DEMO), "--smoke", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "epochs: 100%" in done.stderr  # the progress bar
    return done.stdout, out / "index.html"


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., tuple[object, str]]:
    """The demo in this process: what it exits with, and what it says."""

    def with_options(*args: str) -> tuple[object, str]:
        torch.set_default_dtype(torch.float32)
        monkeypatch.setattr(sys, "argv", ["demo.py", *args])
        try:
            demo.main()
        except SystemExit as stop:
            return stop.code, "".join(capsys.readouterr())
        return None, "".join(capsys.readouterr())

    return with_options


@pytest.fixture(scope="module")
def page(smoke) -> str:
    return smoke[1].read_text()


# the table


def test_the_table_has_all_numbers(smoke):
    printed, path = smoke
    written = json.loads((path.parent / "demo.json").read_text())
    row = {
        m[1].strip(): m[2].split()
        for m in re.finditer(r"(?m)^  (\S.*?)((?:\s{2,}[\d.%-]+)+)$", printed)
    }
    assert float(row["mean of sampled networks"][0]) == pytest.approx(
        written["error_of_mean"], abs=0.01
    )
    assert written["error_of_networks"] >= written["error_of_mean"]
    for score in ("log-likelihood", "typicality"):
        assert len(row[score]) == 2  # photos, upside down
    aurocs = [float(v) for words in list(row)[3:7] for v in row[words]]
    expected = [
        by[s] for s in written["auroc"]["photos"] for by in written["auroc"].values()
    ]
    assert aurocs == pytest.approx(expected, abs=1e-3)
    assert all(0 <= v <= 1 for v in aurocs)
    assert -1 <= float(row["rank correlation, of images"][0]) <= 1
    assert len(row) == 13
    assert "index.html is written" in printed


def test_help_explains_every_option(run):
    code, words = run("--help")
    assert code == 0
    options = re.findall(r"(?m)^  (--[\w-]+)", words)
    assert len(options) == 10
    for option in options:
        assert re.search(rf"(?m)^  {option}(?: \S+)?\s+[a-z]", words), option


def test_bad_options_say_so(run, tmp_path):
    code, words = run("--networks", "1", "--out", str(tmp_path))
    assert code == 2 and "--networks is too small, got 1" in words
    code, words = run("--dataset", "mnist", "--data-dir", str(tmp_path))
    assert code == 2 and "t10k-images-idx3-ubyte of 'mnist' is missing" in words
    assert str(tmp_path / "mnist") in words  # where it was looked for
    assert not list(tmp_path.iterdir())


def test_real_data_may_be_given(run, tmp_path):
    for name in ("mnist", "fashion-mnist"):
        arrays = {}
        for split, count in (("train", 40), ("test", 20)):
            arrays[f"x_{split}"] = np.random.default_rng(0).integers(
                0, 255, (count, 28, 28), np.uint8
            )
            arrays[f"y_{split}"] = np.arange(count) % 10
        np.savez(tmp_path / f"{name}.npz", **arrays)
    code, words = run(
        "--dataset", "fashion-mnist", "--data-dir", str(tmp_path), "--smoke",
        "--out", str(tmp_path / "out"), "--train-images", "30",
    )  # fmt: skip
    assert code is None
    assert re.search(r"AUROC against outliers\s+MNIST\s+upside down", words)
    page = (tmp_path / "out/index.html").read_text()
    assert "7 sneaker" in page and "epochs on 30 images" in page


# the data


def test_photos_are_real_and_have_no_telling_contrast():
    patches = photo_patches()
    assert patches.shape == (520, 1, 8, 8)
    flat = patches.flatten(1)
    assert (flat.amin(1) == 0).all() and flat.amax(1).min() > 0.99
    neighbours = torch.corrcoef(
        torch.stack([patches[..., :-1].flatten(), patches[..., 1:].flatten()])
    )[0, 1]
    assert neighbours > 0.5  # as in photos, and not in noise


def test_training_and_test_images_are_apart():
    images = small_digits(0)
    assert len(images.train) + len(images.test) == 1797
    distance = torch.cdist(images.train.flatten(1), images.test.flatten(1))
    assert distance.min() > 0
    turned = images.outliers["upside down"]
    torch.testing.assert_close(turned.rot90(2, (-2, -1)), images.test)


def test_rank_correlation_is_that_of_scipy():
    a = torch.randn(50)
    b = a + torch.randn(50)
    true = spearmanr(a.numpy(), b.numpy()).statistic
    assert rank_correlation(a, b) == pytest.approx(true)


# the page


class Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.addresses += [given[a] for a in ("src", "href", "srcset") if a in given]
        self.ids += [given["id"]] if "id" in given else []
        self.images += [given] if tag == "img" else []


def test_the_page_is_one_file_with_all_figures(page):
    found = Resources()
    found.feed(page)
    assert found.addresses
    assert all(address.startswith("data:") for address in found.addresses)
    assert not re.search(r"https?:|@import|url\(|fetch\(|{{", page)
    assert len(found.ids) == len(set(found.ids))
    for name, count in FIGURES.items():
        section = page.partition(f'<h2 id="{name}">')[2].partition("<h2")[0]
        assert section.count("<img ") == count, name
    assert len(found.images) == sum(FIGURES.values())
    for image in found.images:
        assert len(image["alt"]) > 30
        content = base64.b64decode(image["src"].partition(",")[2])
        with Image.open(io.BytesIO(content)) as picture:
            picture.load()
            assert picture.width > 600


def test_the_atlas_holds_each_picture_in_its_place():
    tiles = torch.rand(3, 3, 2, 4)
    content = base64.b64decode(as_png(atlas(tiles)).partition(",")[2])
    with Image.open(io.BytesIO(content)) as picture:
        whole = torch.tensor(np.array(picture))
    expected = (tiles[2, 1] * 255).round().byte()
    assert torch.equal(whole[4:6, 4:8], expected)  # third row, second column


def test_the_explorer_knows_the_nearest_image():
    grid = Grid((0, 1, 0, 1), torch.rand(2, 2, 3, 3), torch.rand(2, 2, 3, 3))
    codes = torch.tensor([[0.1, 0.9], [0.9, 0.1]])
    data = explorer_data(grid, codes, torch.tensor([4, 7]), tuple("0123456789"))
    # In the grid's order: bottom left, bottom right, top left, top right.
    assert data["nearest"][1] == 7 and data["nearest"][2] == 4
    root = grid.deviation[1, 0].square().mean().sqrt().item()
    assert data["uncertainty"][2] == pytest.approx(root, rel=1e-2)


# the page in a browser


@pytest.fixture(scope="module")
def browser(smoke):
    program = find_browser()
    if program is None or shutil.which("bash") is None:
        pytest.skip("no Chromium or Chrome on this machine: apt install chromium")
    found = Browser(program)
    yield found
    found.close()


def explorer_json(page: str) -> dict:
    found = re.search(r'id="explorer-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def stated(browser) -> tuple[float, float, float]:
    """Code and standard deviation that the live text says."""
    text = browser.value("document.getElementById('where').textContent")
    numbers = re.search(r"\((\S+), (\S+)\): standard deviation (\S+) on", text)
    return float(numbers[1]), float(numbers[2]), float(numbers[3])


def shown(browser, canvas: str) -> np.ndarray:
    """The tile that a canvas shows, at the middle of its enlarged pixels."""
    code = f"""(() => {{
        const c = document.getElementById("{canvas}");
        const all = c.getContext("2d").getImageData(0, 0, c.width, c.height);
        return [c.width, Array.from(all.data).filter((_, i) => i % 4 == 0)];
    }})()"""
    width, red = browser.value(code)
    side = width // 8
    return np.array(red).reshape(width, width)[side // 2 :: side, side // 2 :: side]


def tile(data: dict, column: int, row: int) -> np.ndarray:
    content = base64.b64decode(data["means"].partition(",")[2])
    with Image.open(io.BytesIO(content)) as picture:
        whole = np.array(picture)
    return whole[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]


def at(data: dict, column: int, row: int) -> tuple[float, float, float]:
    left, right, bottom, top = data["extent"]
    last = data["size"] - 1
    return (
        left + (right - left) * column / last,
        bottom + (top - bottom) * row / last,
        data["uncertainty"][row * data["size"] + column],
    )


def assert_is_at(browser, data: dict, column: int, row: int) -> None:
    assert stated(browser) == pytest.approx(at(data, column, row), abs=0.0051)
    np.testing.assert_array_equal(shown(browser, "mean"), tile(data, column, row))


def map_place(browser, data: dict, column: int, row: int) -> tuple[float, float]:
    browser.value("document.getElementById('map').scrollIntoView({block: 'center'})")
    box = browser.value(
        "(b => [b.left, b.top, b.width, b.height])"
        "(document.getElementById('map').getBoundingClientRect())"
    )
    last = data["size"] - 1
    return box[0] + box[2] * column / last, box[1] + box[3] * (1 - row / last)


def test_explorer_follows_the_keys(browser, smoke, page):
    data = explorer_json(page)
    browser.open(smoke[1], READY)
    assert_is_at(browser, data, 5, 5)
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "map"
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        browser.press(key)
    assert_is_at(browser, data, 7, 6)
    before = browser.value("scrollY")
    browser.press("ArrowDown", shift=True)
    assert_is_at(browser, data, 7, 1)
    for _ in range(3):
        browser.press("ArrowDown")
        browser.press("ArrowLeft", shift=True)
    assert_is_at(browser, data, 0, 0)  # the edge holds
    assert browser.value("scrollY") == before  # the page stays where it is
    browser.press("Home")
    assert_is_at(browser, data, 5, 5)


def test_explorer_follows_the_mouse(browser, smoke, page):
    data = explorer_json(page)
    browser.open(smoke[1], READY)
    for column, row in ((2, 9), (8, 1)):
        browser.move_mouse(*map_place(browser, data, column, row))
        assert_is_at(browser, data, column, row)
    first = shown(browser, "deviation")
    browser.move_mouse(*map_place(browser, data, 1, 1))
    assert (shown(browser, "deviation") != first).any()


def test_explorer_follows_a_finger_on_a_phone(browser, smoke, page):
    data = explorer_json(page)
    browser.open(smoke[1], READY, width=390, height=844)
    start, end = (map_place(browser, data, *place) for place in ((3, 3), (6, 8)))
    before = browser.value("scrollY")
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    browser.drag_finger(start)
    assert_is_at(browser, data, 3, 3)
    browser.drag_finger(start, middle, end)
    assert_is_at(browser, data, 6, 8)
    assert browser.value("scrollY") == before
    assert browser.value("document.documentElement.scrollWidth") <= 390


def test_explorer_is_labelled_and_alone(browser, smoke):
    browser.open(smoke[1], READY)
    label = "document.getElementById('map').getAttribute('aria-label')"
    assert "Arrow keys move" in browser.value(label)
    live = "document.getElementById('where').getAttribute('aria-live')"
    assert browser.value(live) == "polite"
    assert not browser.complaints()
    outside = [r for r in browser.requests() if not r.startswith(("data:", "file:"))]
    assert not outside
    assert len({r for r in browser.requests() if r.startswith("file:")}) == 1
