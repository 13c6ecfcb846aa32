# SPDX-License-Identifier: Apache-2.0
"""Demo of BERT4Rec, from raw ratings to recommendations.

    python -m benchmark.demo_bert4rec --folder demo/bert4rec

prints each command before running it, so that you can repeat every step by hand. In the generated
ratings the next item of a user is often the successor of the last one, which popularity cannot
predict. The demo fails if the trained model is not clearly better than popularity.
"""

import dataclasses
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.demo import Steps, missed_goal, print_next, run_steps, show_report
from benchmark.door import start
from benchmark.programs import read_figures
from recsys.data.sequences.files import read_item_map, read_sequences
from recsys.settings import require_positive, setting
from recsys.train.measure.report import require_matplotlib

INTERACTIONS = 40_000
MIN_GAIN = 0.1
"""Smallest lead over popularity in HR@10 with which the demo succeeds."""
SHOWN_HISTORIES = 5

STEPS: Steps = (
    (
        "1. Raw ratings: {interactions:,} of 2,000 users",
        "generate ratings",
        "--output={folder}/ratings.csv --titles={folder}/movies.csv --users=2000 --items=400 "
        "--interactions={interactions} --overwrite",
    ),
    (
        "2. Ratings to a dataset of sequences",
        "prepare ratings",
        "--input={folder}/ratings.csv --output={folder}/dataset --overwrite",
    ),
    ("3. Check the dataset", "verify", "{folder}/dataset"),
    (
        "4. Train BERT4Rec",
        "train bert4rec",
        "--dataset={folder}/dataset --output={folder}/checkpoint "
        "--log_path={folder}/train_log.json --preset=fast --max_len=50 --epochs=12 --lr=0.003 "
        "--print_freq=50",
    ),
    (
        "5. Test the best checkpoint (the model flags come from the checkpoint)",
        "test",
        "--dataset={folder}/dataset --checkpoint={folder}/checkpoint "
        "--log_path={folder}/test_log.json",
    ),
    (
        f"6. Recommend for {SHOWN_HISTORIES} histories (the next rank often follows a rank)",
        "recommend",
        "--dataset={folder}/dataset --checkpoint={folder}/checkpoint "
        "--recommend_input={folder}/histories.txt "
        "--top_k=5 --output_format=table",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Bert4RecDemoOptions:
    """Settings of this program."""

    folder: Path = setting(Path("demo/bert4rec"), "Folder for all files that the demo writes")
    interactions: int = setting(
        INTERACTIONS, "Ratings to generate; from fewer the model learns less"
    )
    report: bool = setting(
        False, "Draw report.html in the folder, with curves and metrics, and open it in a browser"
    )

    def __post_init__(self) -> None:
        """Refuses to generate no ratings."""
        require_positive(self, "interactions")


SECTIONS: dict[type, str] = {Bert4RecDemoOptions: "demo"}


def write_histories(dataset: Path, file: Path, count: int) -> None:
    """Writes the first users' histories, a line of raw ids each."""
    sequences, raw = read_sequences(dataset), read_item_map(dataset).raw.to_pylist()
    lines = (" ".join(raw[item - 1] for item in sequences[user]) for user in range(count))
    file.write_text("".join(f"{line}\n" for line in lines))


def run_demo(options: Bert4RecDemoOptions) -> dict[str, Any]:
    """Runs every step anew; returns the metrics of the test.

    Raises:
        SystemExit: a step failed.
    """
    folder = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    run_steps(STEPS[:-1], folder=folder, interactions=options.interactions)
    write_histories(folder / "dataset", folder / "histories.txt", SHOWN_HISTORIES)
    run_steps(STEPS[-1:], folder=folder)
    return read_figures(folder / "test_log.json")


def report(metrics: Mapping[str, Any]) -> str:
    """Formats the metrics of the model and of popularity."""
    lines = ["ranking of all items      HR@1   HR@10 NDCG@10"]
    for title, name in (("BERT4Rec", "full"), ("popularity", "popularity")):
        values = (metrics[f"test_{name}_{metric}"] for metric in ("hr@1", "hr@10", "ndcg@10"))
        lines.append(f"{title:22s}" + "".join(f"{value:8.4f}" for value in values))
    return "\n".join(lines)


def run(options: Bert4RecDemoOptions, _arguments: list[str]) -> int:
    """Runs the demo; returns 1 unless the model clearly beats popularity."""
    if options.report:
        require_matplotlib()
    started = time.perf_counter()
    metrics = run_demo(options)
    gain = metrics["test_full_hr@10"] - metrics["test_popularity_hr@10"]
    print(f"\n{report(metrics)}\nEverything is in {options.folder}/.")
    print(f"The demo took {time.perf_counter() - started:.0f} s.")
    if options.report:
        show_report(options.folder, "Demo of BERT4Rec")
    if gain < MIN_GAIN:
        problem = f"HR@10 is {gain:.4f} above popularity, below {MIN_GAIN}"
        if status := missed_goal(problem, options.interactions, INTERACTIONS, "ratings"):
            return status
    print_next(options.folder, f"--raw_ids={options.folder}/dataset")
    return 0


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__, takes_arguments=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
