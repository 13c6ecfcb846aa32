# SPDX-License-Identifier: Apache-2.0
"""The documents and the commands in them."""

import importlib
import importlib.util
import itertools
import re
import shlex

from benchmark import run
from preproc.ratings import command as ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from recsys.auto import AUTO
from recsys.program import new_flags
from recsys.train.config import Config
from recsys_recipes import fitted, tune
from recsys_recipes.command import own_flags
from recsys_recipes.commands import COMMANDS
from tests.harness import REPOSITORY
from tests.repo.flag_reference import flags_of

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
NOTEBOOKS = sorted(REPOSITORY.glob("docs/**/*.ipynb"))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OF_SHELL = {"|", "||", ">", "2>&1", "&"}
"""Words after which a command's own arguments end."""


RATINGS = {f"preproc.{family.name}": family for family in (MOVIELENS, AMAZON)}
OF_FLAGS = {
    "bert4rec.scripts.main": "bert4rec.scripts.flags",
    "preproc.generate_criteo": "preproc.synthetic.clicks",
    "preproc.generate_ratings": "preproc.synthetic.ratings",
}
"""Program -> module with its flags, where that is another one."""


def commands_of(text):
    """Returns the lines of the shell fences, continuations joined, comments left out."""
    commands = []
    for language, body in FENCE.findall(text):
        if language in ("bash", "sh"):
            lines = body.replace("\\\n", " ").splitlines()
            commands += [" ".join(shlex.split(line, comments=True)) for line in lines]
    return [command for command in commands if command]


def check_command(words):
    """Checks the words after `recsys-recipes`, as `check_program` those of a program."""
    word, *rest = words
    command = COMMANDS[word]
    if "" in command.programs:
        program = command.programs[""]
    elif rest[:1] and rest[0] in command.programs:
        program, rest = command.programs[rest[0]], rest[1:]
    elif rest == ["--help"]:
        return
    else:  # of a command that finds the model in the checkpoint, any
        assert command.default or "--checkpoint" in rest
        of_any = "bert4rec" if "bert4rec" in command.programs else "dlrm"
        program = command.programs[command.default or of_any]
    check_program(program.module, [*program.arguments, *own_flags(program, word, rest)])


OF_MODELS = ("recsys_recipes.fitted", "recsys_recipes.tune")
"""Programs whose first word is a model."""


def check_program_of_models(name, model, *words):
    """Checks the flags of a program for a model."""
    if name == "recsys_recipes.tune":
        values = new_flags(tune.SECTIONS)
        tune.TRAINED[model].flags.define_flags(values)
    else:
        values = new_flags()
        fitted.define_flags(values, model)
    assert values([name, *words])[1:] == []
    if name == "recsys_recipes.fitted":
        fitted.config_from_flags(values, model)


def check_program(name, words):
    """Checks that a module is a program, that it has these flags, and that they make a job."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"there is no module {name}"
    if spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        assert importlib.util.find_spec(name), f"{name} is no program"
    if words == ["--help"]:
        return
    # The program of several processes is that of one, with other defaults.
    name = name.replace(".dist_main", ".main")
    if name == "benchmark.run":
        values = run.define_flags(list(itertools.takewhile(lambda w: not w.startswith("-"), words)))
    elif name in RATINGS:
        values = ratings.define_flags(RATINGS[name])
    elif name in OF_MODELS:
        check_program_of_models(name, *words)
        return
    else:
        module = importlib.import_module(OF_FLAGS.get(name, name))
        if not {"SECTIONS", "define_flags"} & set(vars(module)):
            return
        values = flags_of(module)
    others = values([name, *words])[1:]
    if name.startswith(("bert4rec.", "dlrm.", "preproc.")):
        assert others == []
    if name in RATINGS:
        ratings.job_from_flags(RATINGS[name], values)
    elif AUTO in (values.flag_values_dict().get(each) for each in ("preset", "config")):
        return  # reads the dataset
    elif name.startswith(("bert4rec.", "dlrm.")):
        config = module.config_from_flags(values)
        if isinstance(config, Config):
            model = name.partition(".")[0]
            importlib.import_module(f"{model}.scripts.flags").refuse_unused(values, config)
