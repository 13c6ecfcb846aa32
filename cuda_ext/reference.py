# SPDX-License-Identifier: Apache-2.0
"""Defines each op in plain PyTorch, for tests, benchmarks and export.

Letters: B batch, F tables, N = F + 1 vectors, D embedding dimension, R rows of the joint table,
L lookups, G bags, U distinct rows among the lookups.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_ext import RowOptimizer
from cuda_ext.row_rules import ROW_RULES, RowStep

PAD_MULTIPLE = 8
"""Interaction rows are padded to this many columns, so that GEMMs read aligned rows."""


MLP_PANEL = 32
"""Outputs of a panel of a packed MLP; see `mlp_forward`."""


def interaction_width(num_vectors: int, embedding_dim: int) -> int:
    """Returns the number of columns of `dot_interaction`'s result, a multiple of 8.

    Args:
        num_vectors: N.
        embedding_dim: D.

    Returns:
        D + N(N-1)/2, rounded up.
    """
    pairs = num_vectors * (num_vectors - 1) // 2
    return -(-(embedding_dim + pairs) // PAD_MULTIPLE) * PAD_MULTIPLE


def dot_interaction(features: Tensor, bottom: Tensor | None = None) -> Tensor:
    """Computes pairwise dot products of each sample's vectors, behind the bottom output.

    Args:
        features: [B, N, D] floating point; row 0 is the bottom-MLP output, then the tables. If
            `bottom` is given, [B, N - 1, D] without that row.
        bottom: [B, D], the bottom-MLP output; None if `features` has it.

    Returns:
        [B, interaction_width]: row 0 | strictly lower triangle, row-major | zeros.
        Source: Naumov et al. 2019 (arXiv:1906.00091), section 2.1; column order of NVIDIA's DLRM.
    """
    if bottom is not None:
        features = torch.cat([bottom.unsqueeze(1), features], dim=1)
    batch, num_vectors, dim = features.shape
    products = torch.bmm(features, features.transpose(1, 2))
    i, j = torch.tril_indices(num_vectors, num_vectors, -1, device=features.device)
    padding = interaction_width(num_vectors, dim) - dim - i.numel()
    return torch.cat(
        [
            features[:, 0],
            products.flatten(1).index_select(1, i * num_vectors + j),
            features.new_zeros(batch, padding),
        ],
        dim=1,
    )


def gather_dot_interaction(table: Tensor, rows: Tensor, bottom: Tensor) -> Tensor:
    """Looks up embeddings and computes their dot interaction.

    Args:
        table: [R, D].
        rows: [B, F] int, row numbers of the joint table.
        bottom: [B, D]; the looked-up rows are converted to its type first.

    Returns:
        [B, interaction_width] of `bottom`'s type.
    """
    vectors = embedding_gather(table, rows, bottom.dtype)
    return dot_interaction(vectors, bottom)


def note_overflow(overflow: Tensor, gradient: Tensor) -> None:
    """Sets a flag if a gradient holds infinity or NaN.

    Args:
        overflow: bool scalar, changed in place.
        gradient: floating point.
    """
    overflow.logical_or_(~torch.isfinite(gradient).all())


def joint_rows(
    ids: Tensor,
    offsets: Tensor,
    *,
    bag_offsets: Tensor | None = None,
    hash_indices: bool = False,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Converts the ids of each feature to row numbers of the joint table.

    Args:
        ids: [B, F], or [L] with `bag_offsets`; any signed integer type; never changed.
        offsets: [F + 1] int64: first row of each feature, then R.
        bag_offsets: [B * F + 1] int64: bag b * F + f holds the ids of feature f of sample b. None
            for one id per feature.
        hash_indices: take ids modulo the size of their table.
        dtype: type of the result, int32 or int64.

    Returns:
        The rows, in the shape of `ids`.

    Raises:
        ValueError: an id is outside its table, without `hash_indices`.
    """
    num_features = offsets.numel() - 1
    if bag_offsets is None:
        bag = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
    else:
        bag = bag_of_lookup(bag_offsets, ids.numel())
    feature = bag.to(torch.int64) % num_features
    size = offsets.diff()[feature]
    local = ids.to(torch.int64)
    if hash_indices:
        local = torch.remainder(local, size)
    elif bool(((local < 0) | (local >= size)).any()):
        bad = ((local < 0) | (local >= size)).flatten().nonzero()[0, 0]
        raise ValueError(
            f"joint_rows: feature {feature.flatten()[bad]}, sample "
            f"{bag.flatten()[bad] // num_features}: id {local.flatten()[bad]} is outside "
            f"[0, {size.flatten()[bad]}), the rows of its table; hash_indices takes ids modulo the "
            f"table size"
        )
    return (local + offsets[feature]).to(dtype)


def stack_ids(groups: Sequence[Tensor], features: Sequence[int]) -> Tensor:
    """Puts columns of ids of several integer types side by side.

    Args:
        groups: at least one; [features of the group, B] int8 to int64 each.
        features: F numbers: the column of the result for each row of the groups, in order.

    Returns:
        [B, F] int32, or int64 if a group is.

    Raises:
        ValueError: `features` are not the numbers from 0 to F - 1, each once.
    """
    columns = [column for group in groups for column in group]
    if sorted(features) != list(range(len(columns))):
        raise ValueError(
            f"stack_ids: features must be the numbers from 0 to {len(columns) - 1}, each once, "
            f"got {list(features)}"
        )
    wide = any(group.dtype == torch.int64 for group in groups)
    ordered = [columns[features.index(feature)] for feature in range(len(columns))]
    dtype = torch.int64 if wide else torch.int32
    return torch.stack([column.to(dtype) for column in ordered], dim=1)


def embedding_gather(table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Reads rows of the joint table.

    Args:
        table: [R, D] float32, bfloat16 or float64.
        rows: int32 or int64 of any shape, row numbers of the joint table.
        dtype: type of the result.

    Returns:
        [..., D] of `dtype`.
    """
    return torch.nn.functional.embedding(rows, table).to(dtype)


def bag_of_lookup(bag_offsets: Tensor, count: int) -> Tensor:
    """Returns each lookup's bag, [L] int32, from CSR offsets [G + 1]."""
    bags = torch.arange(bag_offsets.numel() - 1, dtype=torch.int32, device=bag_offsets.device)
    return torch.repeat_interleave(bags, bag_offsets.diff(), output_size=count)


def embedding_bag(
    table: Tensor,
    rows: Tensor,
    bag_offsets: Tensor,
    dtype: torch.dtype,
    *,
    scale: Tensor | None = None,
) -> Tensor:
    """Sums the rows of each bag.

    Args:
        table: [R, D] float32, bfloat16 or float64.
        rows: [L] int32 or int64, row numbers of the joint table.
        bag_offsets: [G + 1] int64, where each bag begins, then L.
        dtype: type of the result.
        scale: [L] float32, factor of each row; None for 1.

    Returns:
        [G, D] of `dtype`, zeros for an empty bag; summed in float32 (float64 for a float64 table).
    """
    vectors = torch.nn.functional.embedding(rows, table)
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    if scale is not None:
        vectors = vectors * scale.unsqueeze(1).to(vectors.dtype)
    sums = vectors.new_zeros(bag_offsets.numel() - 1, table.shape[1])
    return sums.index_add(0, bag_of_lookup(bag_offsets, rows.numel()), vectors).to(dtype)


def sum_duplicate_rows(rows: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Sums gradients of duplicate rows, in order of occurrence.

    Args:
        rows: [L] int.
        gradients: [L, D].

    Returns:
        (unique rows [U] int64 ascending, their summed gradients [U, D]); bits are the same on every
        run.
    """
    unique, segment = torch.unique(rows.to(torch.int64), return_inverse=True)
    summed = gradients.new_zeros(unique.numel(), gradients.shape[1])
    return unique, summed.index_add_(0, segment, gradients)


_MASK = 0xFFFFFFFF


def _mix_bits(x: Tensor) -> Tensor:
    """Applies the finalizer of MurmurHash3 to 32-bit numbers held in int64."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = x ^ (x >> shift)
        # Multiplies by halves of the factor: the product of two 32-bit numbers can exceed 2^63.
        x = (x * (factor & 0xFFFF) + (((x * (factor >> 16)) & _MASK) << 16)) & _MASK
    return x


def stochastic_bfloat16(values: Tensor, rows: Tensor, seed: int, step: Tensor) -> Tensor:
    """Rounds float32 to bfloat16 stochastically.

    The probability of rounding up is the fraction that is cut off.

    Args:
        values: [U, D] float32.
        rows: [U] int, row of the table that each will be written to.
        seed: seed of the random bits.
        step: scalar tensor: the random bits are new at each step.

    Returns:
        [U, D] bfloat16. The random bits depend only on seed, step, row and column. Infinities and
        NaN are kept.
    """
    rows = rows.to(torch.int64)
    start = _mix_bits(step.to(torch.int64) & _MASK) ^ (seed & _MASK)
    key = _mix_bits(_mix_bits(_mix_bits(start) ^ (rows >> 32)) ^ (rows & _MASK))
    column = torch.arange(values.shape[1], device=values.device)
    random = _mix_bits((key.unsqueeze(1) + column * 0x9E3779B9) & _MASK) >> 16
    bits = values.view(torch.int32).to(torch.int64) & _MASK
    high = (bits + random) >> 16
    high = torch.where(high >= 0x8000, high - 0x10000, high).to(torch.int16)
    return torch.where(values.isfinite(), high.view(torch.bfloat16), values.to(torch.bfloat16))


def update_rows(
    optimizer: RowOptimizer,
    table: Tensor,
    state: dict[str, Tensor],
    rows: Tensor,
    gradients: Tensor,
    step: RowStep,
    *,
    source: Tensor | None = None,
    scale: Tensor | None = None,
) -> None:
    """Applies the gradients of looked-up rows to a table, in place.

    The gradient of a row is the sum, over its lookups, of scale[l] * gradients[source[l]] *
    inverse_scale. Rows that do not occur stay unchanged: they do not decay either.

    Args:
        optimizer: name of the rule.
        table: [R, D] float32, bfloat16 (written with stochastic rounding) or float64.
        state: tensors from `ops.row_optimizer_state`, changed in place.
        rows: [L] int; a row may occur more than once.
        gradients: [L, D] floating point; [G, D] with `source`.
        step: rate, weight decay and scaling of the step.
        source: [L] int, row of `gradients` for each lookup; None if there is one row per lookup.
        scale: [L], factor of each lookup; None for 1.
    """
    compute = torch.promote_types(table.dtype, torch.float32)
    if source is not None:
        gradients = gradients.index_select(0, source)
    gradients = gradients.to(compute)
    if scale is not None:
        gradients = gradients * scale.unsqueeze(1).to(compute)
    unique, gradients = sum_duplicate_rows(rows, gradients)
    if step.inverse_scale is not None:
        gradients = gradients * step.inverse_scale
    old = table.index_select(0, unique).to(compute)
    old_state = {name: tensor.index_select(0, unique) for name, tensor in state.items()}
    new, new_state = ROW_RULES[optimizer].apply(old, gradients, old_state, step)

    def write(into: Tensor, values: Tensor) -> None:
        if step.overflow is not None:
            values = torch.where(step.overflow, into.index_select(0, unique), values)
        into.index_copy_(0, unique, values)

    for name, values in new_state.items():
        write(state[name], values)
    if table.dtype == torch.bfloat16:
        write(table, stochastic_bfloat16(new, unique, step.rounding_seed, step.step))
    else:
        write(table, new)


UNUSED_PAGE, OLD_PAGE, RECENT_PAGE = 0, 1, 2
"""Marks of a page: when a row in it was last used, before or since the last `age_pages`."""


def mark_pages(marks: Tensor, rows: Tensor, row_bytes: int, page_bytes: int) -> int:
    """Marks the pages of a table's rows as recent, in place; returns how many were unused.

    Args:
        marks: [P] uint8, a mark for each page.
        rows: int row numbers of any shape; row r is bytes [r * row_bytes, (r + 1) * row_bytes).
        row_bytes: bytes of a row.
        page_bytes: bytes of a page.
    """
    unused = int((marks == UNUSED_PAGE).sum())
    for row in set(rows.flatten().tolist()):
        first, last = row * row_bytes // page_bytes, ((row + 1) * row_bytes - 1) // page_bytes
        marks[first : last + 1] = RECENT_PAGE
    return unused - int((marks == UNUSED_PAGE).sum())


def age_pages(marks: Tensor) -> None:
    """Makes recent pages old and all others unused, in place: [P] uint8."""
    marks.copy_((marks == RECENT_PAGE).to(marks.dtype) * OLD_PAGE)


def attention(
    queries: Tensor | None,
    fused: Tensor,
    query_offsets: Tensor,
    key_offsets: Tensor,
    positions: Tensor | None,
    causal: bool,
    num_heads: int,
    draws: Tensor | None,
    dropped_levels: int,
) -> Tensor:
    """Computes multi-head attention from each query to the tokens of its own sequence.

    Args:
        queries: [Q, H E]; None if `fused` has them.
        fused: [N, 2 H E] keys and values, or [N, 3 H E] queries, keys and values.
        query_offsets: [S + 1] int64, first query of each sequence, then Q.
        key_offsets: [S + 1] int64, first key of each sequence, then N.
        positions: [Q] int64, position of each query in its sequence; None if every token is a
            query.
        causal: attend to no later position than the query's own.
        num_heads: H.
        draws: uint8 random bytes, sequence by sequence, within it head by head, key by key, query
            by query. A weight whose byte is below `dropped_levels` is dropped. None drops nothing.
        dropped_levels: dropout probability in 1/256.

    Returns:
        [Q, H E]. Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.
    """
    parts = fused.chunk(3 if queries is None else 2, dim=1)
    packed = parts if queries is None else (queries, *parts)
    outputs, next_draw = [], 0
    asked, known = query_offsets.tolist(), key_offsets.tolist()
    for number in range(len(asked) - 1):
        rows, of_keys = slice(*asked[number : number + 2]), slice(*known[number : number + 2])
        q, k, v = (
            matrix[r].view(-1, num_heads, matrix.shape[1] // num_heads).transpose(0, 1)
            for matrix, r in zip(packed, (rows, of_keys, of_keys), strict=True)
        )
        scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
        if causal:
            count = rows.stop - rows.start
            last = torch.arange(count) if positions is None else positions[rows]
            hidden = torch.arange(scores.shape[2]) > last.unsqueeze(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(2)
        if draws is not None:
            drawn = draws[next_draw : next_draw + weights.numel()]
            by_key = (drawn >= dropped_levels).view(num_heads, *weights.shape[:0:-1])
            weights = weights * by_key.transpose(1, 2) * (256 / (256 - dropped_levels))
            next_draw += weights.numel()
        outputs.append((weights @ v).transpose(0, 1).flatten(1))
    return torch.cat(outputs) if outputs else fused.new_empty(0, parts[0].shape[1])


def mlp_forward(
    x: Tensor, weights: Tensor, biases: Tensor, sizes: Sequence[int], *, final_relu: bool
) -> Tensor:
    """Runs linear layers with ReLU between them, from packed weights.

    Args:
        x: [B, sizes[0]] float32 or float64.
        weights: layer by layer, [panels, inputs, 32] with 32 outputs in each panel, zeros beyond
            the last output; float32, bfloat16 or float64, converted to the type of `x` before they
            are multiplied.
        biases: layer by layer, [panels x 32], of the type of `x`.
        sizes: width of the input, then outputs of each layer.
        final_relu: apply a ReLU after the last layer too.

    Returns:
        [B, sizes[-1]].
    """
    pairs = list(itertools.pairwise(sizes))
    padded = [-(-outputs // MLP_PANEL) * MLP_PANEL for _, outputs in pairs]
    counts = [columns * inputs for (inputs, _), columns in zip(pairs, padded, strict=True)]
    layers = zip(torch.split(weights, counts), torch.split(biases, padded), pairs, strict=True)
    for number, (packed, bias, (inputs, outputs)) in enumerate(layers):
        weight = packed.view(-1, inputs, MLP_PANEL).transpose(1, 2).reshape(-1, inputs)
        x = torch.nn.functional.linear(x, weight[:outputs].to(x.dtype), bias[:outputs])
        if number < len(pairs) - 1 or final_relu:
            x = torch.relu(x)
    return x


def top_rows(
    queries: Tensor,
    table: Tensor,
    bias: Tensor,
    count: int,
    excluded_query: Tensor,
    excluded_row: Tensor,
) -> tuple[Tensor, Tensor]:
    """Finds the rows with the largest products in float64; equal products keep the order of rows.

    Products are summed column by column, the bias last. Products of float32 factors are exact in
    float64, so every implementation that keeps this order gets the same bits.

    Args:
        queries: [B, D].
        table: [R, D].
        bias: [R] to add to the products of each row.
        count: K.
        excluded_query: [P] int64 query of each row to leave out.
        excluded_row: [P] int64 row to leave out of that query's list, ignored outside [0, R).

    Returns:
        ([B, K] int64 rows, best first, [B, K] float32 products); -1 and -inf where rows run out.
    """
    products = torch.zeros(len(queries), len(table), dtype=torch.float64)
    for column in range(table.shape[1]):
        products += queries[:, column, None].double() * table[:, column].double()
    products += bias.double()
    inside = (excluded_row >= 0) & (excluded_row < len(table))
    products[excluded_query[inside], excluded_row[inside]] = -torch.inf
    products = torch.nn.functional.pad(products, (0, count), value=-torch.inf)
    best, rows = products.sort(dim=1, descending=True, stable=True)
    best, rows = best[:, :count], rows[:, :count]
    return rows.masked_fill(best.isneginf(), -1), best.to(torch.float32)


def relu_backward(
    gradient: Tensor, output: Tensor, transpose: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradient of a ReLU's input, its transpose and its sums.

    Args:
        gradient: [B, N], gradient of the output.
        output: [B, N], output of the ReLU, of the same type.
        transpose: return the transpose too.

    Returns:
        [B, N] the gradient, 0 where the output is not positive (a NaN counts as positive); [N, B]
        its transpose, contiguous, or [0, 0]; [N] its sums over the batch, float32 or float64.
    """
    delta = torch.ops.aten.threshold_backward(gradient, output, 0)
    exact = torch.promote_types(gradient.dtype, torch.float32)
    transposed = delta.t().contiguous() if transpose else delta.new_empty(0, 0)
    return delta, transposed, delta.sum(0, dtype=exact)


def output_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Runs a linear layer with one output, summed in float32 or wider.

    Args:
        x: [B, N].
        weight: [1, N], of the same type.
        bias: [1].

    Returns:
        [B, 1] float32, or float64 if x is.
    """
    exact = torch.promote_types(x.dtype, torch.float32)
    return torch.nn.functional.linear(x.to(exact), weight.to(exact), bias.to(exact))


def output_layer_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """Computes the gradients of a linear layer with one output.

    Args:
        gradient: [B, 1] float32, or float64 if x is.
        x: [B, N] input of the layer.
        weight: [1, N], of the type of x.
        relu: x is the output of a ReLU; return the gradient of the ReLU's input.

    Returns:
        [B, N] gradient of x or of the ReLU's input, in the type of x; [2 N + 1] sums over the batch
        in the type of `gradient`: N of that result before it is rounded, N of x times the gradient
        (the gradient of the weights) and one of the gradient (that of the bias).
    """
    delta = gradient * weight.to(gradient.dtype)
    if relu:
        delta = torch.ops.aten.threshold_backward(delta, x.to(gradient.dtype), 0)
    to_weight = (gradient * x.to(gradient.dtype)).sum(0)
    return delta.to(x.dtype), torch.cat([delta.sum(0), to_weight, gradient.sum(0)])


def cross_entropy(logits: Tensor, labels: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Computes the summed binary cross entropy and its gradient.

    Args:
        logits: [B] float32.
        labels: [B] float32, 0 to 1.
        factor: multiplies both results.

    Returns:
        (scalar loss, [B] gradient of the logits).
    """
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    return losses * factor, (torch.sigmoid(logits) - labels) * factor


def dlrm_forward(
    numerical: Tensor,
    ids: Tensor,
    offsets: Tensor,
    hash_indices: bool,
    table: Tensor,
    bottom_weights: Tensor,
    bottom_biases: Tensor,
    bottom_sizes: Sequence[int],
    top_weights: Tensor,
    top_biases: Tensor,
    top_sizes: Sequence[int],
) -> Tensor:
    """Runs a DLRM: bottom MLP, lookup, dot interaction, top MLP.

    Args:
        numerical: [B, M] float32 or float64.
        ids: [B, F], see `joint_rows`.
        offsets: [F + 1] int64: first row of each feature, then R.
        hash_indices: take ids modulo the size of their table.
        table: [R, D].
        bottom_weights: weights of the bottom MLP, packed as `mlp_forward` takes them.
        bottom_biases: biases of the bottom MLP, packed likewise.
        bottom_sizes: widths of the bottom MLP, from M to D.
        top_weights: weights of the top MLP, packed likewise.
        top_biases: biases of the top MLP, packed likewise.
        top_sizes: widths of the top MLP, from the columns of the interaction to 1.

    Returns:
        [B] logits.
    """
    bottom = mlp_forward(numerical, bottom_weights, bottom_biases, bottom_sizes, final_relu=True)
    rows = joint_rows(ids, offsets, hash_indices=hash_indices)
    features = dot_interaction(table[rows].to(bottom.dtype), bottom)
    logits = mlp_forward(features, top_weights, top_biases, top_sizes, final_relu=False)
    return logits.squeeze(1)
