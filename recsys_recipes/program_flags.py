# SPDX-License-Identifier: Apache-2.0
"""Names of the flags of every program, from the programs themselves."""

from collections.abc import Callable, Mapping

from absl import flags

from benchmark import demo, demo_bert4rec
from benchmark import run as benchmarks
from bert4rec.scripts import flags as bert4rec
from dataspec import verify
from dlrm.scripts import flags as dlrm
from preproc.clicks import __main__ as clicks
from preproc.ratings import command as ratings
from preproc.ratings.job import AMAZON, MOVIELENS
from preproc.synthetic import clicks as generated_clicks
from preproc.synthetic import ratings as generated_ratings
from recsys.program import new_flags
from recsys_recipes import doctor, tune
from recsys_recipes.serving import ask, deploy, serve


def _filled(define: Callable[[flags.FlagValues], None]) -> flags.FlagValues:
    """Returns flags that a program adds to those of absl."""
    values = flags.FlagValues()  # type: ignore[no-untyped-call]
    define(values)
    return values


_FLAGS: Mapping[str, Callable[[], flags.FlagValues]] = {
    "benchmark.run": benchmarks.define_flags,
    "benchmark.demo": lambda: new_flags(demo.SECTIONS),
    "benchmark.demo_bert4rec": lambda: new_flags(demo_bert4rec.SECTIONS),
    "preproc.generate_criteo": generated_clicks.define_flags,
    "preproc.generate_ratings": generated_ratings.define_flags,
    "preproc.clicks": clicks.define_flags,
    "preproc.movielens": lambda: ratings.define_flags(MOVIELENS),
    "preproc.amazon": lambda: ratings.define_flags(AMAZON),
    "dataspec.verify": lambda: new_flags(verify.SECTIONS),
    "dlrm.scripts.main": lambda: _filled(dlrm.define_flags),
    "bert4rec.scripts.main": lambda: _filled(bert4rec.define_flags),
    "recsys_recipes.serving.deploy": lambda: _filled(deploy.define_flags),
    "recsys_recipes.serving.serve": lambda: new_flags(serve.SECTIONS),
    "recsys_recipes.serving.ask": lambda: new_flags(ask.SECTIONS),
    "recsys_recipes.tune": lambda: new_flags(tune.SECTIONS),
    "recsys_recipes.doctor": lambda: new_flags(doctor.SECTIONS),
    "recsys_recipes.completion": new_flags,
}
"""Module of a program -> its flags, unparsed."""


def flag_names(module: str) -> list[str]:
    """Returns the names of a program's flags, sorted, `help` among them."""
    values = _FLAGS[module]()
    return sorted({values[name].name for name in values} | {"help"})
