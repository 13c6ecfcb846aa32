# SPDX-License-Identifier: Apache-2.0
"""Makes a run again from its raw files, and certifies what is equal.

    python -m recsys_recipes.reproduce RUN --input data/raw --output data/again

Prepares the dataset and trains the model of RUN again, as recorded, compares
every file and tests both runs. Exit status: 0 all equal, 1 something differs,
2 refused.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from recsys import program
from recsys.errors import FAILED, INTERRUPTED, UserError
from recsys.flags import values_from_flags
from recsys.settings import REQUIRED, Sections, section_from_dict, setting

if TYPE_CHECKING:
    from recsys_recipes.reproduction.original import OriginalRun

_SETTINGS_FILE = "settings.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReproduceSettings:
    """Settings of this program."""

    output: Path = setting(REQUIRED, "New folder for the dataset, the run and certificate.json")
    input: Path | None = setting(
        None,
        "Raw file or folder of the dataset; by default, it is checked and not made again",
    )
    dataset: Path | None = setting(
        None,
        "Folder of the dataset, if it has moved; with --input, its manifest is enough",
    )
    schema: Path | None = setting(None, "YAML file of ratings with a format of their own")

    def __post_init__(self) -> None:
        """Refuses a schema without raw files."""
        if self.schema is not None and self.input is None:
            raise UserError(
                "`schema` has no effect without `input`: leave it out", settings=("schema", "input")
            )


SECTIONS: Sections = {ReproduceSettings: "reproduce"}


def reproduce(run: Path, settings: ReproduceSettings) -> int:
    """Reproduces a run, prints what was found and writes the certificate.

    Args:
        run: folder of the run, or one checkpoint of it.
        settings: settings of this program.

    Returns:
        0 if all is equal, `FAILED` if something differs; the exit status of the training if it
        failed.

    Raises:
        UserError: the run, the dataset or the folder is refused.
    """
    _require_empty(settings.output)
    # With torch, which takes seconds.
    from recsys_recipes.reproduction.certificate import Certificate
    from recsys_recipes.reproduction.dataset import RawFiles, compare_datasets
    from recsys_recipes.reproduction.original import OriginalRun
    from recsys_recipes.reproduction.runs import compare_runs, compare_tests, opened_again

    original = OriginalRun.open(run, settings.dataset)
    manifest, dataset, compared = original.manifest, original.dataset, None
    if settings.input is None:
        original.check_files_of_dataset()
    else:
        raw = RawFiles(settings.input, dataset, manifest, settings.schema)
        settings.output.mkdir(parents=True, exist_ok=True)
        dataset = settings.output / "dataset"
        program.print_line(f"Preparing {dataset} from {settings.input}")
        compared = compare_datasets(manifest, raw.make(dataset))
    settings.output.mkdir(parents=True, exist_ok=True)
    again = settings.output / "run"
    if status := _train(original, dataset, again, settings.output / _SETTINGS_FILE):
        return status
    reproduced = opened_again(again)
    if not reproduced.state.get("ended"):
        return INTERRUPTED  # by a signal; the training has said so
    certificate = Certificate(
        run=run.resolve().name,
        model=original.model.name,
        dataset_fingerprint=manifest.fingerprint,
        dataset=compared,
        **compare_runs(original, again, reproduced),
        figures=compare_tests(original, dataset, again),
    )
    for line in certificate.lines():
        program.print_line(line)
    program.print_line(str(certificate.save(settings.output)))
    return 0 if certificate.equal else FAILED


def _require_empty(output: Path) -> None:
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(
            f"`output` {output}: exists and is not an empty folder; name a new one",
            setting="output",
            path=output,
        )


def _train(original: "OriginalRun", dataset: Path, again: Path, file: Path) -> int:
    """Trains again in processes of their own; returns the exit status."""
    import yaml

    from recsys.train.saving.run_folder import check_writable

    check_writable(again, "output")
    file.write_text(yaml.safe_dump(original.settings()))
    flags_given = {"preset": file, "dataset": dataset, "output": again, "baselines": ""}
    flags_given |= original.machine_settings
    words = (f"--{name}={value}" for name, value in flags_given.items())
    return program.run_recipe(*("train", original.model.name, *words), processes=original.processes)


def run(flag_values: flags.FlagValues, folders: Sequence[str]) -> int:
    """Runs the program with parsed flags; returns the exit status."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    if len(folders) != 1:
        raise UserError("give the folder of one run: recsys-recipes reproduce RUN --output NEW")
    return reproduce(Path(folders[0]), section_from_dict(ReproduceSettings, values))


def main(argv: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    folders: list[str] = []
    return program.run_command(
        lambda values: run(values, folders),
        program.new_flags(SECTIONS),
        argv,
        __doc__,
        arguments=folders,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
