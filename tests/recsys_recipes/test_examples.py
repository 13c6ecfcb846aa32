# SPDX-License-Identifier: Apache-2.0
"""The examples in the docstrings of the Python API."""

import doctest

import pytest

from recsys_recipes import clicks, ratings


class LastLines(doctest.OutputChecker):
    """Compares the end of an output: runs also print their progress."""

    def check_output(self, want, got, optionflags):
        return got.endswith(want)


@pytest.mark.parametrize("module", [clicks, ratings], ids=["clicks", "ratings"])
def test_the_examples_of_the_functions_run_as_one_session(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(LastLines(), verbose=False)
    session = {}
    found = {test.name.rpartition(".")[2]: test for test in doctest.DocTestFinder().find(module)}
    for test in sorted((found[name] for name in module.__all__), key=lambda test: test.lineno):
        assert test.examples, f"{test.name} has no example"
        test.globs = session
        runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0
