# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention over packed sequences, for all tokens or chosen ones as queries."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bert4rec.nn.dropout import draw_bytes, dropout, dropped_levels
from bert4rec.nn.layout import SequenceLayout
from cuda_ext import ops

_WIDEST_HEAD = 256
"""Largest dimension of a head that flash attention supports."""

# Without cuDNN's backend, which takes 60 to 90 ms to plan each shape: batches differ in shape.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(
    queries: Tensor | None,
    fused: Tensor,
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    num_heads: int,
    *,
    query_positions: Tensor | None = None,
    causal: bool = False,
    dropout_probability: float = 0.0,
) -> Tensor:
    """Attends from each query to the tokens of its own sequence.

    Args:
        queries: [Q, H E] packed by `query_layout`; None if `fused` has them.
        fused: [N, 2 H E] keys and values, or [N, 3 H E] queries, keys and values, packed by
            `key_layout`.
        query_layout: offsets of the sequences in the queries.
        key_layout: offsets of the same sequences in `fused`.
        num_heads: H.
        query_positions: [Q] int64 position of each query in its sequence; None if every token is
            a query.
        causal: attend to no later position than the query's own.
        dropout_probability: dropout of the attention weights; pass 0 outside training.

    Returns:
        [Q, H E]. Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
    """
    if _takes_native(fused, key_layout):
        offsets = query_layout.offsets, key_layout.offsets
        levels, draws = dropped_levels(dropout_probability), None
        if levels:
            draws = draw_bytes(ops.count_draws(*offsets, num_heads))
        return ops.attention(
            *(queries, fused, *offsets, num_heads),
            positions=query_positions,
            causal=causal,
            draws=draws,
            dropped_levels=levels,
        )
    heads = fused.view(fused.shape[0], 3 if queries is None else 2, num_heads, -1)
    own = None if queries is None else queries.view(queries.shape[0], num_heads, -1)
    packed_attention = _packed_attention(heads, dropout_probability)
    if packed_attention is not None and not (causal and query_positions is not None):
        mixed = packed_attention(
            *(heads.unbind(1) if own is None else (own, *heads.unbind(1))),
            *(query_layout.offsets.to(torch.int32), key_layout.offsets.to(torch.int32)),
            *(query_layout.max_length, key_layout.max_length),
            window_size=(-1, 0) if causal else (-1, -1),
        )
        assert isinstance(mixed, Tensor)
        return mixed.flatten(1)
    padded = key_layout.padded(heads).permute(2, 0, 3, 1, 4).unbind()
    q, k, v = padded if own is None else (query_layout.padded(own).transpose(1, 2), *padded)
    mask = _mask(query_layout, key_layout, query_positions, causal)
    if dropout_probability:
        weights = _weights(q, k, mask, causal and mask is None)
        mixed = dropout(weights, dropout_probability, training=True) @ v
    else:
        with sdpa_kernel(_BACKENDS):
            mixed = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal and mask is None
            )
    return query_layout.packed(mixed.transpose(1, 2)).flatten(1)


def _takes_native(fused: Tensor, key_layout: SequenceLayout) -> bool:
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if tracing or torch.compiler.is_compiling():
        return False  # a traced graph must run on any device
    return fused.device.type == "cpu" and key_layout.token_lengths is None


def _packed_attention(queries: Tensor, dropout_probability: float) -> Callable[..., Any] | None:
    if torch.compiler.is_compiling():
        return None  # its offsets would have to include the tokens that compiling adds
    half = queries.dtype in (torch.float16, torch.bfloat16)
    width = queries.shape[-1]  # flash attention, unlike torch's wrapper, does not pad it
    fits = half and width % 8 == 0 and width <= _WIDEST_HEAD
    if not (queries.is_cuda and fits) or dropout_probability:
        return None
    try:  # not above: it loads the compiler, 5 s that a program without a GPU does not need
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # before PyTorch 2.13
        return None
    return varlen_attn


def _mask(
    query_layout: SequenceLayout,
    key_layout: SequenceLayout,
    query_positions: Tensor | None,
    causal: bool,
) -> Tensor | None:
    """Returns [B, 1, 1 or Q, T] bool, False for hidden keys."""
    if causal and query_positions is not None:
        positions = query_layout.padded(query_positions)
        keys = torch.arange(key_layout.max_length, device=positions.device)
        return (keys <= positions.unsqueeze(2)).unsqueeze(1)
    # Padding follows each sequence, so the causal queries of tokens do not see it.
    return None if causal or key_layout.is_dense else key_layout.is_token()[:, None, None, :]


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, triangle: bool) -> Tensor:
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if triangle:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(3)
