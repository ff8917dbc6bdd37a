"""The list of bad inputs that the tests try, counted from the tests themselves.

python docs/bad_inputs.py            # print it
python docs/bad_inputs.py --write    # put it into docs/adversity.md
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from readme_section import Section

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "adversity.md"
# By family: the modules of tests, and their functions.
FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "idx files: bytes changed, cut off, put in; archives that lie about their size": {
        "adversity": (
            "test_idx_files_are_read_or_refused",
            "test_gz_bombs_are_not_unpacked",
        ),
        "datasets": (
            "test_damaged_files_say_so",
            "test_no_more_is_unpacked_than_promised",
        ),
    },
    "npz files and arrays that are no images": {
        "datasets": (
            "test_arrays_that_are_no_images_say_so",
            "test_bad_npz_files_say_so",
        ),
    },
    "checkpoints: damaged, with strange parts, with code, of another run": {
        "adversity": (
            "test_damaged_checkpoints_are_read_or_refused",
            "test_strange_parts_of_a_checkpoint_change_nothing",
            "test_no_code_from_a_file",
        ),
        "checkpoints": ("test_a_checkpoint_of_another_run_is_refused",),
    },
    "state dicts: incomplete, of other shapes, formats and structures": {
        "ecosystem": ("test_bad_states_change_nothing",),
    },
    "loaders: shapes, dtypes, NaN, forms of batches, no data": {
        "adversity": ("test_any_loader_is_fitted_or_refused",),
        "bad_input": (
            "test_loaders_that_a_structure_cannot_take",
            "test_no_data",
            "test_a_stream_fits_post_hoc_and_online_training_explains",
        ),
    },
    "images given to a posterior: shapes, dtypes, NaN, none, one without a batch": {
        "bad_input": (
            "test_images_that_the_autoencoder_cannot_take",
            "test_no_image_and_a_single_one",
            "test_a_convolution_takes_no_single_image_for_a_batch",
        ),
    },
    "masks of imputation: shapes, dtypes, NaN, all or nothing observed, views": {
        "adversity": ("test_any_mask_is_taken_or_refused",),
        "imputation": ("test_bad_input",),
    },
    "priors, noise and temperatures that make no Gaussian": {
        "bad_input": (
            "test_values_that_make_no_gaussian",
            "test_values_that_evidence_is_asked_for",
            "test_alpha_outside_its_range",
        ),
    },
    "models: no autoencoder, weights that are not finite, not fitted": {
        "bad_input": (
            "test_a_model_that_is_no_autoencoder",
            "test_a_decoder_that_ends_in_another_shape",
            "test_weights_that_are_not_finite",
            "test_an_autoencoder_that_is_not_fitted",
            "test_a_structure_that_is_not_fitted",
        ),
    },
    "several threads at once": {
        "adversity": (
            "test_fits_in_two_threads_do_not_mix",
            "test_overlapping_threads_leave_backpack_storing",
            "test_a_recording_that_fails_at_once_lets_others_in",
        ),
    },
    "ranks that fail or die, processes that are killed": {
        "distributed_fit": (
            "test_an_error_on_one_rank_ends_all",
            "test_a_rank_that_dies_ends_all_with_a_message",
        ),
        "distributed_online": ("test_an_error_on_one_rank_ends_all",),
        "checkpoints": ("test_killed_and_resumed",),
    },
}


def n_cases(test: Callable[..., Any]) -> int:
    """How many cases a test tries.

    Args:
        test: The test.

    Returns:
        Its parameters' combinations, times the examples that hypothesis makes.
    """
    marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    chosen = getattr(test, "_hypothesis_internal_use_settings", None)
    examples = 1 if chosen is None else chosen.max_examples
    return examples * math.prod(len(mark.args[1]) for mark in marks)


def table() -> str:
    """The families and their cases.

    Returns:
        A Markdown table.
    """
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    lines, total = ["| input | cases tried |", "| --- | ---: |"], 0
    for family, tests in FAMILIES.items():
        cases = sum(
            n_cases(getattr(importlib.import_module(f"tests.test_{module}"), name))
            for module, names in tests.items()
            for name in names
        )
        lines.append(f"| {family} | {cases} |")
        total += cases
    return "\n".join([*lines, f"| all of them | {total} |"]) + "\n"


SECTION = Section("bad inputs", table, PAGE)

if __name__ == "__main__":
    SECTION.print_or_write(__doc__ or "")
