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
from recsys.train.config import Config
from tests.harness import REPOSITORY
from tests.repo.flag_reference import flags_of

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])

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
    elif name.startswith(("bert4rec.", "dlrm.")):
        config = module.config_from_flags(values)
        if isinstance(config, Config):
            model = name.partition(".")[0]
            importlib.import_module(f"{model}.scripts.flags").refuse_unused(values, config)
