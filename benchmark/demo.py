# SPDX-License-Identifier: Apache-2.0
"""Demo of DLRM, from raw click logs to AUC and latency.

    python -m benchmark.demo --folder demo

prints each command before running it, so that you can repeat every step by hand. The logs are
generated from a known model, so the best possible AUC is known. The demo fails if the trained
model's AUC is more than 0.01 below it; with fewer rows than the default, it only prints the gap.
"""

import dataclasses
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark.door import start
from benchmark.programs import read_figures
from recsys.errors import FAILED
from recsys.program import open_in_browser, run_recipe
from recsys.settings import require_positive, setting
from recsys.train.measure.report import require_matplotlib, run_page, write_page
from recsys.train.run_log import read_run_log

ROWS = 1_500_000
MAX_AUC_GAP = 0.01

TRAINING_FLAGS = (
    "--embedding_dim=16 --bottom_mlp_sizes=64,16 --top_mlp_sizes=128,64,1 --batch_size=1024 "
    "--drop_last --optimizer=adam --lr=0.003 --warmup_steps=50 --decay_start_step=300 "
    "--decay_steps=800 --print_freq=100 --eval_split=validation"
)

Steps = Sequence[tuple[str, str, str]]
"""Title, words after `recsys-recipes` and flags of each command, with placeholders."""

STEPS: Steps = (
    (
        "1. Raw logs: {rows:,} rows in 4 days",
        "generate criteo",
        "--output={folder}/raw --rows={rows} --days=4 --overwrite",
    ),
    (
        "2. Raw logs to a dataset (split binary)",
        "prepare criteo",
        "--input={folder}/raw --output={folder}/dataset --overwrite",
    ),
    ("3. Check the dataset", "verify", "{folder}/dataset"),
    (
        "4. Train DLRM",
        "train dlrm",
        "--dataset={folder}/dataset --output={folder}/checkpoint "
        # No baselines: the demo compares with the best that any model can reach.
        f"--log_path={{folder}}/train_log.json {TRAINING_FLAGS} --baselines=",
    ),
    (
        "5. Test the checkpoint (the model flags come from the checkpoint)",
        "test dlrm",
        "--dataset={folder}/dataset --checkpoint={folder}/checkpoint "
        "--log_path={folder}/test_log.json --baselines= {report}",
    ),
    (
        "6. Latency of inference",
        "test dlrm",
        "--mode=inference_benchmark --dataset={folder}/dataset "
        "--checkpoint={folder}/checkpoint --log_path={folder}/inference_log.json",
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """Settings of this program."""

    folder: Path = setting(Path("demo"), "Folder for all files that the demo writes")
    rows: int = setting(ROWS, "Rows of the generated log; fewer widen the gap to the best AUC")
    report: bool = setting(
        False, "Draw report.html in the folder, with curves and metrics, and open it in a browser"
    )

    def __post_init__(self) -> None:
        """Refuses a log without rows."""
        require_positive(self, "rows")


SECTIONS: dict[type, str] = {DemoOptions: "demo"}


def run_step(title: str, *words: str) -> None:
    """Prints a command and runs it in a process.

    Raises:
        SystemExit: the command failed.
    """
    print(f"\n== {title}", flush=True)
    started = time.perf_counter()
    if code := run_recipe(*words):
        command = shlex.join(["recsys-recipes", *words])
        raise SystemExit(f"demo: `{command}` failed with exit code {code}")
    print(f"   ({time.perf_counter() - started:.1f} s)", flush=True)


def run_steps(steps: Steps, **values: object) -> None:
    """Runs commands, with values for their placeholders and without empty words.

    Raises:
        SystemExit: a step failed.
    """
    for title, command, flags in steps:
        words = [word.format(**values) for word in flags.split()]
        run_step(title.format(**values), *command.split(), *filter(None, words))


def missed_goal(problem: str, size: int, default: int, unit: str) -> int:
    """Prints that a model is worse than expected; returns the exit status.

    With less data than the default a model learns less: that is not a failure.
    """
    if size < default:
        print(f"{problem}: {size:,} {unit} are fewer than the {default:,} that the demo needs.")
        return 0
    print(f"demo: {problem}", file=sys.stderr)
    return FAILED


def show_report(folder: Path, title: str) -> None:
    """Draws the curves and metrics of a demo, and opens the page."""
    entries = [e for name in ("train", "test") for e in read_run_log(folder / f"{name}_log.json")]
    page = folder / "report.html"
    write_page(page, run_page(entries, title))
    print(f"Report: {page}")
    open_in_browser(page.resolve().as_uri())


def run_demo(options: DemoOptions) -> str:
    """Runs every step; returns how the model misses its goal, empty if it does not.

    Raises:
        SystemExit: a step failed.
    """
    folder = options.folder
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    report = f"--report={folder}/report.html" if options.report else ""
    run_steps(STEPS, folder=folder, rows=options.rows, report=report)
    planted = json.loads((folder / "raw" / "planted.json").read_text())["best_reachable"]
    best = planted["last_day_first_half"]
    metrics = read_figures(folder / "test_log.json")
    if metrics["num_rows"] != best["rows"]:
        raise SystemExit(f"demo: tested on {metrics['num_rows']} rows instead of {best['rows']}")
    gap = float(best["auc"] - metrics["auc"])
    print(
        f"\nTest AUC {metrics['auc']:.4f}; the best that any model can reach on these rows is "
        f"{best['auc']:.4f} (gap {gap:.4f}).\nLog loss {metrics['log_loss']:.4f}; best "
        f"{best['log_loss']:.4f}.\nEverything is in {folder}/; run a command above again to try "
        "other settings."
    )
    return f"the gap of {gap:.4f} is above {MAX_AUC_GAP}" if gap > MAX_AUC_GAP else ""


def run(options: DemoOptions, _arguments: list[str]) -> int:
    """Runs the demo; returns 1 if the AUC gap is too large."""
    if options.report:
        require_matplotlib()
    started = time.perf_counter()
    problem = run_demo(options)
    print(f"The demo took {time.perf_counter() - started:.0f} s.")
    if options.report:
        show_report(options.folder, "Demo of DLRM")
    if problem and (status := missed_goal(problem, options.rows, ROWS, "rows")):
        return status
    print_next(options.folder)
    return 0


def print_next(folder: Path, *flags: str) -> None:
    """Prints the commands that deploy and serve the model of a demo."""
    python = os.path.relpath(sys.executable)
    models = f"--repository={folder}/models"
    deploy = shlex.join([f"--checkpoint={folder}/checkpoint", models, *flags])
    print(f"Next, deploy the model: {python} -m recsys_recipes deploy {deploy}")
    print(f"and serve it: {python} -m recsys_recipes serve {shlex.quote(models)} --http_port=8000")


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    return start(SECTIONS, run, argv, __doc__, takes_arguments=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
