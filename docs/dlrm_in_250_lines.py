# SPDX-License-Identifier: Apache-2.0
"""DLRM in 250 lines: reads a prepared dataset, trains the network, and tests it.

This program specifies what `recsys-recipes train dlrm` computes, without code of the project.
The product is faster and does more, but at every step both programs have the same loss, up to
rounding. A test compares 200 steps to 1e-6 (`tests/e2e/test_specifications.py`).

    recsys-recipes prepare criteo --input train.txt --output data/small --preset kaggle
    python docs/dlrm_in_250_lines.py --dataset data/small

The flags have the names and the meaning of the product's. With these, which are the defaults here,
the product writes the same losses to its log:

    recsys-recipes train dlrm --dataset data/small --embedding_dim 4 --bottom_mlp_sizes 8,4 \
        --top_mlp_sizes 8,1 --batch_size 48 --lr 0.2 --warmup_steps 20 --decay_start_step 100 \
        --decay_steps 150 --max_steps 200 --epochs 1000 --print_freq 1 --log_path log.json

The layers are small on purpose. Rounding decides whether a ReLU passes a number that is almost
zero, and among the millions of numbers of larger layers one will be. From then on, the losses
differ by 1e-6 to 1e-5, and more if the learning rate is too high.

The sections follow the data: files, network, initial weights, training, test. Left out are wide
files, datasets with lists or without numerical features, and all other variants.
"""

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional

Settings = argparse.Namespace
Rows = tuple[Tensor, Tensor, Tensor]
"""Label [N], numerical features [N, M] and ids [N, F] of N rows."""


def parse_settings() -> Settings:
    """Reads the flags."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--dataset", type=Path, required=True, help="folder of a prepared dataset")
    add("--embedding_dim", type=int, default=4, help="D, columns of each table")
    add("--bottom_mlp_sizes", type=sizes, default="8,4", help="layers; the last is D")
    add("--top_mlp_sizes", type=sizes, default="8,1", help="layers; the last is 1")
    add("--batch_size", type=int, default=48, help="rows of a step")
    add("--max_steps", type=int, default=200, help="steps of the training")
    add("--lr", type=float, default=0.2, help="learning rate between warm-up and decay")
    add("--warmup_steps", type=int, default=20, help="steps of the warm-up")
    add("--decay_start_step", type=int, default=100, help="last step before the decay")
    add("--decay_steps", type=int, default=150, help="steps of the decay; 0 never decays")
    add("--decay_power", type=int, default=2, help="exponent of the decay")
    add("--seed", type=int, default=12345, help="seed of the initial weights")
    return parser.parse_args()


def sizes(text: str) -> list[int]:
    """Reads the sizes of layers, such as `8,4`."""
    return [int(size) for size in text.split(",")]


# The files. docs/dataset_format.md specifies them to the byte.


def read_spec(root: Path) -> tuple[int, list[int]]:
    """Returns M and the cardinality C of each categorical feature, whose ids lie in [0, C)."""
    spec = yaml.safe_load((root / "feature_spec.yaml").read_text())
    channels = spec["channel_spec"]  # they name the features in the order of the files
    cardinalities = [spec["feature_spec"][name]["cardinality"] for name in channels["categorical"]]
    return len(channels["numerical"]), cardinalities


def read_split(root: Path, split: str) -> Rows:
    """Reads a split into memory: a folder with one file per column."""
    num_numerical, cardinalities = read_spec(root)
    label = np.fromfile(root / split / "label.bin", np.uint8)  # 1 for a click
    numerical = read_values(root / split / "numerical.bin", "f", len(label) * num_numerical)
    files = [root / split / f"cat_{i}.bin" for i in range(len(cardinalities))]
    ids = [read_values(file, "i", len(label)) for file in files]
    return (
        torch.from_numpy(label).double(),
        torch.from_numpy(numerical).double().view(-1, num_numerical),
        torch.from_numpy(np.stack(ids, axis=1).astype(np.int64)),
    )


def read_values(path: Path, kind: str, count: int) -> np.ndarray:
    """Reads little-endian numbers, whose width follows from the size of the file.

    Ids have 1, 2 or 4 bytes, numerical features 2 or 4. The feature spec names a type as well, but
    the files decide.
    """
    width = path.stat().st_size // count
    return np.fromfile(path, f"<{kind}{width}")


# The network. The bottom MLP turns the numbers of a row into a vector. Each id selects a vector
# from the table of its feature. The interaction compares all these vectors, and the top MLP turns
# the result into one number: the logit of a click.


class DlrmInPlainTorch(nn.Module):
    """Bottom MLP, tables, interaction and top MLP.

    Args:
        num_numerical: M, numerical features.
        cardinalities: rows of each of the F tables.
        settings: sizes of the layers.
    """

    def __init__(self, num_numerical: int, cardinalities: list[int], settings: Settings) -> None:
        super().__init__()
        dim, num_vectors = settings.embedding_dim, 1 + len(cardinalities)
        self.pairs = torch.tril_indices(num_vectors, num_vectors, offset=-1)  # [2, pairs]
        width = dim + self.pairs.shape[1]
        # Matrix products are faster if a row is a multiple of 8 numbers, so zeros fill it up.
        self.padding = -width % 8
        # The order of these three is the order in which the random numbers are drawn.
        self.bottom_mlp = make_mlp([num_numerical, *settings.bottom_mlp_sizes], last_relu=True)
        self.tables = nn.ParameterList(draw_table(rows, dim) for rows in cardinalities)
        self.top_mlp = make_mlp([width + self.padding, *settings.top_mlp_sizes], last_relu=False)

    def forward(self, numerical: Tensor, ids: Tensor) -> Tensor:
        """Maps numerical features [B, M] and ids [B, F] to logits [B]."""
        bottom = self.bottom_mlp(numerical)  # [B, D]
        columns = zip(ids.T, self.tables, strict=True)
        of_ids = [functional.embedding(column, table) for column, table in columns]
        vectors = torch.stack([bottom, *of_ids], dim=1)  # [B, 1 + F, D]
        return self.top_mlp(self.interact(bottom, vectors)).squeeze(1)

    def interact(self, bottom: Tensor, vectors: Tensor) -> Tensor:
        """Puts the dot product of each pair of vectors behind the bottom MLP's output.

        The products tell which features go together. The pairs are (1, 0), (2, 0), (2, 1), (3, 0)
        and so on, where vector 0 is the bottom MLP's. The result is [B, D + pairs + padding].
        """
        products = vectors @ vectors.transpose(1, 2)  # [B, 1 + F, 1 + F]
        of_pairs = products[:, self.pairs[0], self.pairs[1]]  # [B, pairs]
        return functional.pad(torch.cat([bottom, of_pairs], dim=1), (0, self.padding))


# The initial weights. They are those of NVIDIA's DLRM. The seed determines them, since every draw
# has its place in the order.


def make_mlp(widths: list[int], *, last_relu: bool) -> nn.Sequential:
    """Makes linear layers with a ReLU after each; `last_relu` keeps the one after the last.

    PyTorch draws weights when it makes a layer. Others replace them here, but the draws count: all
    layers are made before the weights of the first are drawn again.
    """
    linears = [nn.Linear(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    for linear in linears:
        inputs, outputs = linear.in_features, linear.out_features
        nn.init.normal_(linear.weight, 0, math.sqrt(2 / (inputs + outputs)))
        nn.init.normal_(linear.bias, 0, math.sqrt(1 / outputs))
    layers = [layer for linear in linears for layer in (linear, nn.ReLU())]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


def draw_table(rows: int, dim: int) -> nn.Parameter:
    """Draws a table [rows, dim] uniformly, with larger values for fewer rows."""
    bound = math.sqrt(1 / rows)
    return nn.Parameter(torch.empty(rows, dim).uniform_(-bound, bound))


def make_model(root: Path, settings: Settings) -> DlrmInPlainTorch:
    """Makes the network for a dataset.

    In a log that was prepared with a schema, the vector of id 0 begins as zero. Id 0 stands for
    unknown categories: if training never meets one, a random vector would mislead later. Datasets
    in Criteo's format keep the random vector, as in the published recipes.
    """
    torch.manual_seed(settings.seed)
    model = DlrmInPlainTorch(*read_spec(root), settings)
    manifest = root / "manifest.json"
    if manifest.exists() and json.loads(manifest.read_text())["kind"] == "clicks":
        with torch.no_grad():
            for table in model.tables:
                table[0] = 0
    return model.double()  # computes in float64, so that its own rounding plays no part


# The training.


def learning_rate(step: int, settings: Settings) -> float:
    """Returns the learning rate of a step, counted from 1: it rises, stays, and decays."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.decay_steps == 0 or step <= settings.decay_start_step:
        return settings.lr
    left = max(settings.decay_start_step + settings.decay_steps - step, 0) / settings.decay_steps
    return settings.lr * left**settings.decay_power


def endless_batches(rows: Rows, batch_size: int) -> Iterator[Rows]:
    """Yields batches in the order of the files, epoch after epoch; the last one may be smaller."""
    while True:
        yield from zip(*(column.split(batch_size) for column in rows), strict=True)


def train(model: DlrmInPlainTorch, rows: Rows, settings: Settings) -> None:
    """Trains by stochastic gradient descent; prints the loss of each step before its update."""
    batches = itertools.islice(endless_batches(rows, settings.batch_size), settings.max_steps)
    for step, (label, numerical, ids) in enumerate(batches, start=1):
        loss = functional.binary_cross_entropy_with_logits(model(numerical, ids), label)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= learning_rate(step, settings) * parameter.grad
        print(step, f"{loss.item():.9f}")


# The test.


def roc_auc(scores: np.ndarray, label: np.ndarray) -> float:
    """Returns the probability that a click scores above another row; equal scores count half."""
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[level]  # from 1, the mean over equal scores
    clicks = int(label.sum())
    pairs_won = ranks[label > 0].sum() - clicks * (clicks + 1) / 2
    return float(pairs_won / (clicks * (len(label) - clicks)))


def main() -> None:
    """Trains on the split `train` and prints the AUC on the split `test`."""
    settings = parse_settings()
    rows = read_split(settings.dataset, "train")
    model = make_model(settings.dataset, settings)
    train(model, rows, settings)
    label, numerical, ids = read_split(settings.dataset, "test")
    logits = model(numerical, ids).detach()
    print("auc", f"{roc_auc(logits.numpy(), label.numpy()):.6f}")


if __name__ == "__main__":
    main()
