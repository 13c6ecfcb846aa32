# SPDX-License-Identifier: Apache-2.0
"""Deployed models with adapters: constant ones merged, the others as they were trained."""

import json

import numpy as np
import pytest
import torch

from bert4rec.config import Bert4RecConfig
from bert4rec.model.network import ADAPTERS, Bert4Rec
from bert4rec.model.scoring import scorer_for
from bert4rec.model.weights import MODEL_GROUP, NUM_ITEMS, weights_of
from bert4rec.serve.export import Bert4RecExport
from recsys.data.manifest import Manifest
from recsys.serve.config_pbtxt import ServingSettings
from recsys.serve.deploy import DeploySettings, deploy
from recsys.serve.formats import read_weights
from recsys.train.origin import FINGERPRINT
from recsys.train.saving.write import write_checkpoint
from tests.bert4rec.conftest import NUM_ITEMS as CATALOGUE
from tests.bert4rec.conftest import raw_id
from tests.recsys.serve.checkpoints import BERT4REC_SETTINGS

CPU = torch.device("cpu")
HISTORIES = ([3, 4, 5], [20, 21], [7], list(range(1, 12)))
SETTINGS = {"head_transform": True, "adapter_rank": 4}


def adapted_checkpoint(path, fingerprint="", **settings):
    """Writes a BERT4Rec with large adapters to a folder and returns the model."""
    values = BERT4REC_SETTINGS | SETTINGS | settings | {"load_checkpoint_path": "base"}
    config = Bert4RecConfig.from_dict(values)
    torch.manual_seed(1)
    model = Bert4Rec(config.model, CATALOGUE, config.adapter).eval()
    model.reset_parameters(0.3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(ADAPTERS):
                parameter.normal_(0, 1 if "gate" in name else 0.1)
    state = {"step": 7, NUM_ITEMS: CATALOGUE, FINGERPRINT: fingerprint}
    write_checkpoint(path, {MODEL_GROUP: weights_of(model)}, state, config.to_dict())
    return model


def served_by(checkpoint, folder, dataset=None, **serving):
    export = Bert4RecExport(checkpoint, 5, dataset)
    settings = DeploySettings(repository=folder, serving=ServingSettings(**serving), verify=16)
    version = deploy(export, settings).folder
    return export.served_class.open(version, CPU), version


@pytest.mark.parametrize(
    ("settings", "artifact_format"),
    [
        ({"adapter": "lora"}, "eager"),
        ({"adapter": "lora"}, "torchscript"),
        ({"adapter": "ilora"}, "eager"),
        pytest.param({"adapter": "ilora"}, "onnx", marks=pytest.mark.release),
        ({"adapter": "ilora", "objective": "causal"}, "eager"),
        ({"adapter": "ilora", "objective": "causal"}, "torchscript"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
@torch.inference_mode()
def test_answers_are_those_of_the_adapted_model(tmp_path, settings, artifact_format):
    model = adapted_checkpoint(tmp_path / "checkpoint", **settings)
    served, version = served_by(tmp_path / "checkpoint", tmp_path / "m", format=artifact_format)
    causal = settings.get("objective") == "causal"
    padded = np.array([h + [0] * (11 + causal - len(h)) for h in HISTORIES], np.int64)
    (answer,) = served.predict([{"history": padded, "exclude_seen": np.zeros((4, 1), np.bool_)}])
    scorer = scorer_for(model, [np.array(h) for h in HISTORIES], causal=causal)
    scores, order = (scorer.vectors @ scorer.items.T + scorer.bias).topk(5)
    np.testing.assert_allclose(answer["scores"], scores, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(answer["items"], order + 1)
    if artifact_format == "eager":
        has_adapters = any(name.startswith(ADAPTERS) for name in read_weights(version))
        assert has_adapters == (settings["adapter"] == "ilora")


def test_a_deployed_model_answers_as_recommend_does(tmp_path, program, dataset, capsys):
    fingerprint = Manifest.load(dataset).fingerprint
    adapted_checkpoint(tmp_path / "checkpoint", fingerprint, adapter="ilora")
    lines = "\n".join(" ".join(map(raw_id, history)) for history in HISTORIES)
    capsys.readouterr()
    program(
        *("--mode=recommend", f"--dataset_path={dataset}", "--top_k=5", "--base_device=cpu"),
        f"--load_checkpoint_path={tmp_path / 'checkpoint'}",
        model=(),
        stdin=lines.encode(),
    )
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    served, _ = served_by(tmp_path / "checkpoint", tmp_path / "models", dataset)
    requests = [
        {"history": np.array([[raw_id(item).encode() for item in history]], np.object_)}
        for history in HISTORIES
    ]
    for answer, line in zip(served.predict(requests), expected, strict=True):
        assert [name.decode() for name in answer["items"][0]] == line["items"]
        np.testing.assert_allclose(answer["scores"][0], line["scores"], rtol=1e-5, atol=1e-5)
