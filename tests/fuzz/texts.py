# SPDX-License-Identifier: Apache-2.0
"""Texts that people write: schemas, presets, requests, histories, configurations of Triton."""

import contextlib
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import yaml

from bert4rec.scripts.flags import PRESETS as BERT4REC_PRESETS
from dlrm.scripts.flags import PRESETS as DLRM_PRESETS
from dlrm.serve.native import NativeDlrm
from preproc.clicks.job import semantics_of_schema
from preproc.clicks.kernel.packed_format import packed_format
from recsys.errors import UserError
from recsys.ratings import recommend
from recsys.serve.client.connection import request_from_json
from recsys.serve.client.requests import check_arrays
from recsys.serve.config_pbtxt import parse_config
from recsys.serve.reconfigure import kept_settings
from recsys.serve.versions.policy import is_handwritten, policy_of, served_versions, with_policy
from recsys_recipes.serving.raw_clicks import ServedRawClicks
from tests.dlrm.deployed import draw
from tests.fuzz.compiled import inputs
from tests.fuzz.documents import edited_json, edited_yaml
from tests.fuzz.target import Draws, Target
from tests.preproc.clicks import schema_log

_CPU = torch.device("cpu")


def schemas(folder: Path, data: bytes) -> None:
    """Reads a schema; one that is accepted also becomes the kernel's."""
    draws = Draws(data)
    text = yaml.safe_dump(schema_log.SCHEMA, allow_unicode=True).encode()
    path = folder / "schema.yaml"
    path.write_bytes(draws.edited(text) if draws.below(4) == 0 else edited_yaml(draws, text))
    with contextlib.suppress(UserError):
        semantics = semantics_of_schema(path, {})
        packed_format(semantics.line_format, semantics)


def presets(folder: Path, data: bytes) -> None:
    """Reads a preset of a model."""
    draws = Draws(data)
    known = draws.pick((BERT4REC_PRESETS, DLRM_PRESETS))
    text = (known.folder / f"{draws.pick(known.names())}.yaml").read_bytes()
    path = folder / "preset.yaml"
    path.write_bytes(draws.edited(text) if draws.below(4) == 0 else edited_yaml(draws, text))
    with contextlib.suppress(UserError):
        known.read(str(path))


@functools.cache
def _served() -> tuple[NativeDlrm, ServedRawClicks]:
    """A version that takes features, lines and fields, by both backends."""
    version = inputs(Path(tempfile.mkdtemp(prefix="fuzz_served_"))) / "version"
    return NativeDlrm(version), ServedRawClicks.open(version, _CPU)


_ROW = "\t".join([*map(str, range(13)), *(f"{n * 7919:x}" for n in range(26))])


def json_requests(folder: Path, data: bytes) -> None:
    """Answers a request alike in both backends, or refuses it in the same words."""
    draws = Draws(data)
    native, eager = _served()
    features = {name: array.tolist() for name, array in draw(2, num_numerical=13).items()}
    features["categorical"] = [[0] * 26, [1] * 26]
    lines, fields = {"line": [[_ROW], [_ROW]]}, {"fields": [_ROW.split("\t")] * 2}
    text = json.dumps(draws.pick((lines, fields, features))).encode()
    text = draws.edited(text) if draws.below(3) == 0 else edited_json(draws, text)
    try:
        request = request_from_json(native.deployment.signature, text.decode(errors="replace"))
        check_arrays(native.deployment.signature, request)
    except UserError:
        return
    answers = []
    for served in (native, eager):
        try:
            answers.append(served.respond(request)["logit"])
        except UserError as error:
            answers.append(str(error))
    if any(isinstance(answer, str) for answer in answers):
        assert str(answers[0]) == str(answers[1])
    else:
        np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-4)


def histories(folder: Path, data: bytes) -> None:
    """Reads a line of item ids."""
    draws = Draws(data)
    known = {"1": 1, "a b": 2, "[1]": 3, "Ä": 4}
    line = draws.pick((b'["1", "a b", 7]', b"1 2 3", b"[1] \xc3\x84", b'{"items": [1]}'))
    with contextlib.suppress(UserError, UnicodeDecodeError):
        recommend._words(draws.edited(line), known)


_CONFIG = (
    '# Settings of triton/deployer.py, kept by the next deployment: {"max_queue": 7}\n'
    'name: "dlrm"\nbackend: "recsys"\nmax_batch_size: 64\n'
    'input {\n  name: "line"\n  data_type: TYPE_STRING\n  dims: [1]\n}\n'
    "version_policy: {{ {} }}\n"
)
_POLICIES = ("latest { num_versions: 2 }", "all { }", "specific { versions: [1,3] }")


def model_configs(folder: Path, data: bytes) -> None:
    """Reads a config.pbtxt and its version policy."""
    draws = Draws(data)
    text = _CONFIG.replace("{{ {} }}", "{ " + draws.pick(_POLICIES) + " }").encode()
    path = folder / "config.pbtxt"
    path.write_bytes(draws.edited(text, 6))
    with contextlib.suppress(UserError, UnicodeDecodeError):
        kept_settings(path)
    with contextlib.suppress(UserError, UnicodeDecodeError):
        config = path.read_text()
        is_handwritten(config)
        parse_config(config, "config.pbtxt")
        policy = policy_of(config)
        served_versions(policy, [1, 2, 3])
        assert is_handwritten(config) or policy_of(with_policy(config, policy)) == policy


TARGETS = tuple(map(Target, (schemas, presets, json_requests, histories, model_configs)))
