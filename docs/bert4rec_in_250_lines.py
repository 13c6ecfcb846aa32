# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec in 250 lines: reads a prepared dataset, trains the network, and tests it.

This program specifies what `recsys-recipes train bert4rec` computes, without code of the project.
The product is faster and does more, but at every step both programs have the same loss, up to
rounding. A test compares 200 steps to 1e-6 (`tests/e2e/test_specifications.py`).

    recsys-recipes prepare ratings --input ratings.csv --output data/films
    python docs/bert4rec_in_250_lines.py --dataset data/films

The network and its training are those of the preset `fast`, without dropout and with random item
vectors at the start. The flags have the names and the meaning of the product's. With the defaults,
the product writes the same losses to its log:

    recsys-recipes train bert4rec --dataset data/films --preset fast --max_len 50 --dropout 0 \
        --item_init normal --max_steps 200 --epochs 1000 --print_freq 1 --log_path log.json

The objective is causal: at each item of a history, the network predicts the next one. The sections
follow the data: histories, batches, network, training, test. The test is of the last step, where
the product takes the best by validation. Left out are splits by time, and all other variants.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

Settings = argparse.Namespace
Histories = list[np.ndarray]
"""The item numbers of each user, oldest first."""


def parse_settings() -> Settings:
    """Reads the flags."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--dataset", type=Path, required=True, help="folder of a prepared dataset")
    add("--max_len", type=int, default=50, help="most items that the network reads")
    add("--emb_dim", type=int, default=64, help="D, columns of the item vectors and blocks")
    add("--nhead", type=int, default=2, help="H, attention heads")
    add("--num_layers", type=int, default=2, help="blocks")
    add("--batch_size", type=int, default=128, help="B, histories of a step")
    add("--max_steps", type=int, default=200, help="steps of the training")
    add("--lr", type=float, default=1e-3, help="learning rate at the end of the warm-up")
    add("--warmup_steps", type=int, default=100, help="steps of the warm-up")
    add("--weight_decay", type=float, default=0.01, help="times lr: what weights lose in a step")
    add("--clip_norm", type=float, default=5.0, help="largest norm of a step's gradient")
    add("--seed", type=int, default=12345, help="seed of the initial weights and the batches")
    return parser.parse_args()


# The histories. docs/dataset_format.md specifies their files under "Sequences".


def read_histories(root: Path) -> tuple[Histories, int]:
    """Returns the histories, and I, the number of items.

    Items have the numbers from 1 to I. The last item of a history is for the test, the one before
    it for validation, and the others are for training.
    """
    parts = sorted((root / "sequences").glob("part-*.parquet"))
    rows = [items for part in parts for items in pq.read_table(part)["items"].to_pylist()]
    num_items = pq.read_metadata(root / "item_map.parquet").num_rows
    return [np.array(items) for items in rows], num_items


# The batches. The seed and the number of the epoch determine them.


def endless_batches(histories: Histories, settings: Settings) -> Iterator[Tensor]:
    """Yields batches of items, epoch after epoch; the last one of an epoch may be smaller.

    Each epoch takes one window of each history, in random order: up to `max_len` items to read and
    one more to predict, from anywhere in a longer history. A single item, which no other follows,
    is left out. Zeros before the items make all windows of a batch equally long: [B, T + 1].
    """
    known = np.array([len(history) - 2 for history in histories])
    lengths = np.minimum(known, settings.max_len + 1)
    users = np.flatnonzero(lengths > 1)
    for epoch in itertools.count():
        generator = np.random.default_rng((settings.seed, epoch))
        starts = generator.integers(0, known - lengths, endpoint=True)
        order = users[generator.permutation(len(users))]
        for chosen in np.split(order, range(settings.batch_size, len(order), settings.batch_size)):
            windows = [histories[u][starts[u] : starts[u] + lengths[u]] for u in chosen]
            longest = lengths[chosen].max()
            padded = [np.pad(window, (longest - len(window), 0)) for window in windows]
            yield torch.from_numpy(np.stack(padded))


# The network. Each item becomes a vector, to which its position adds another. Blocks let each item
# gather what it needs from the items before it. The result is compared with the vectors of all
# items; the more they agree, the likelier an item comes next.


class TransformerBlock(nn.Module):
    """Attention, which mixes the tokens of a history, and a network for each token alone."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.attention_out = nn.Linear(dim, dim)
        self.expand = nn.Linear(dim, 4 * dim)
        self.contract = nn.Linear(4 * dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward_norm = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor, is_visible: Tensor) -> Tensor:
        """Maps tokens [B, T, D]; `is_visible` [B, 1, T, T]: may a token (row) see one (column)."""
        tokens = tokens + self.attend(self.attention_norm(tokens), is_visible)
        between = functional.gelu(self.expand(self.feed_forward_norm(tokens)))
        return tokens + self.contract(between)

    def attend(self, tokens: Tensor, is_visible: Tensor) -> Tensor:
        """Replaces each token by a mean of visible tokens, weighted by how well they match it."""
        batch, length, dim = tokens.shape
        heads = self.qkv(tokens).view(batch, length, 3, self.num_heads, dim // self.num_heads)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)  # each [B, H, T, D / H]
        scores = queries @ keys.transpose(2, 3) / math.sqrt(dim // self.num_heads)
        # Not minus infinity: padding sees nothing, and a softmax of nothing is not a number.
        weights = scores.masked_fill(~is_visible, -1e9).softmax(dim=3)  # [B, H, T, T]
        mixed = (weights @ values).transpose(1, 2).reshape(batch, length, dim)
        return self.attention_out(mixed)


class Bert4RecInPlainTorch(nn.Module):
    """Item vectors, positions, blocks, and the scores of all items."""

    def __init__(self, num_items: int, settings: Settings) -> None:
        super().__init__()
        dim = settings.emb_dim
        # Row 0 is padding. The last row is the mask item of another objective.
        self.items = nn.Parameter(torch.empty(num_items + 2, dim))
        self.positions = nn.Parameter(torch.empty(settings.max_len, dim))
        self.norm = nn.LayerNorm(dim)
        blocks = [TransformerBlock(dim, settings.nhead) for _ in range(settings.num_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(dim)
        self.bias = nn.Parameter(torch.zeros(num_items))
        self.draw_weights()

    @torch.no_grad()
    def draw_weights(self, std: float = 0.02) -> None:
        """Draws weights from N(0, std), layer by layer, then the vectors; biases are zero."""
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                linear.weight.normal_(0, std)
                linear.bias.zero_()
        self.items.normal_(0, std)
        self.positions.normal_(0, std)

    def forward(self, items: Tensor) -> Tensor:
        """Maps items [B, T] to a vector [B, T, D] behind each; the last position is the newest."""
        length = items.shape[1]
        not_later = torch.ones(length, length, dtype=torch.bool).tril()
        is_visible = not_later & (items > 0)[:, None, None, :]  # [B, 1, T, T]
        tokens = functional.embedding(items, self.items) + self.positions[-length:]
        tokens = self.norm(tokens)
        for block in self.blocks:
            tokens = block(tokens, is_visible)
        return self.final_norm(tokens)

    def scores(self, hidden: Tensor) -> Tensor:
        """Maps vectors [..., D] to the scores of all items [..., I]; column 0 is item 1."""
        return hidden @ self.items[1:-1].T + self.bias


# The training.


def train(model: Bert4RecInPlainTorch, histories: Histories, settings: Settings) -> None:
    """Trains by AdamW; prints the loss of each step before its update."""
    moments = {each: torch.zeros(2, *each.shape).double() for each in model.parameters()}
    batches = itertools.islice(endless_batches(histories, settings), settings.max_steps)
    for step, window in enumerate(batches, start=1):
        items, following = window[:, :-1], window[:, 1:]  # each [B, T]
        is_item = items > 0
        scores = model.scores(model(items)[is_item])  # [items of the batch, I]
        loss = functional.cross_entropy(scores, following[is_item] - 1)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for parameter, of_parameter in moments.items():
            update(parameter, of_parameter, step, settings)
        print(step, f"{loss.item():.9f}")


def learning_rate(step: int, settings: Settings) -> float:
    """Returns the learning rate of a step, counted from 1: a rise, then half a cosine to zero."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    done = (step - settings.warmup_steps) / (settings.max_steps - settings.warmup_steps)
    return settings.lr * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def update(parameter: Tensor, moments: Tensor, step: int, settings: Settings) -> None:
    """Updates a parameter by AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101).

    The moments are running means of the gradient and of its square. They begin as zero, which the
    divisors make up for.
    """
    rate, (mean, square), gradient = learning_rate(step, settings), moments, parameter.grad
    mean += (1 - 0.9) * (gradient - mean)
    square += (1 - 0.999) * (gradient**2 - square)
    parameter *= 1 - rate * settings.weight_decay
    root = (square / (1 - 0.999**step)).sqrt() + 1e-8
    parameter -= rate * mean / (1 - 0.9**step) / root


# The test.


@torch.no_grad()
def rank_test_item(model: Bert4RecInPlainTorch, history: np.ndarray, max_len: int) -> int:
    """Returns how many items that are new to the user score at least as high as the last one."""
    known, truth = history[:-1], history[-1]
    items = torch.from_numpy(known[-max_len:])
    scores = model.scores(model(items[None])[0, -1]).numpy()  # [I]
    true_score = scores[truth - 1]
    scores[known - 1] = -np.inf
    return int((np.delete(scores, truth - 1) >= true_score).sum())


def main() -> None:
    """Trains, and prints HR@10 and NDCG@10 of the test items."""
    settings = parse_settings()
    histories, num_items = read_histories(settings.dataset)
    torch.manual_seed(settings.seed)
    # The weights are drawn in float32. Float64 then keeps the program's own rounding out.
    model = Bert4RecInPlainTorch(num_items, settings).double()
    train(model, histories, settings)
    ranks = np.array([rank_test_item(model, each, settings.max_len) for each in histories])
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)
    print("hr@10", f"{(ranks < 10).mean():.6f}", "ndcg@10", f"{gains.mean():.6f}")


if __name__ == "__main__":
    main()
