# SPDX-License-Identifier: Apache-2.0
"""Row numbers of ids, their sort, and lookups of rows and bags, on every backend."""

import pytest
import torch

from cuda_ext import error_bounds, reference
from tests.cuda_ext.conftest import randn, spread
from tests.harness import refusal

FLOATS = [torch.float32, torch.float16, torch.bfloat16]
TABLES = [torch.float32, torch.bfloat16]
DIMS = [1, 3, 8, 16, 17, 48, 100, 128, 129, 256, 300]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


def random_integers(high, *shape, low=0, seed=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def random_bags(lengths_below, bags, seed=0):
    lengths = random_integers(lengths_below, bags, seed=seed)
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


@pytest.mark.parametrize(
    ("shape", "hash_indices", "id_type", "dtype"),
    spread(
        [(700, 26), (5, 26), (3, 100), (0, 3), (1, 1)],
        *([False, True], INTEGERS, [torch.int32, torch.int64]),
    ),
    ids=str,
)
def test_joint_rows(backend, shape, hash_indices, id_type, dtype):
    batch, features = shape
    sizes = random_integers(120, features, low=1, seed=features)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    if hash_indices:
        smallest = torch.iinfo(id_type).min
        ids = random_integers(torch.iinfo(id_type).max, batch, features, low=smallest)
    else:
        ids = random_integers(10**9, batch, features) % sizes
    ids = ids.to(id_type)
    before = ids.clone()
    found = backend.run("joint_rows", ids, offsets, None, hash_indices, dtype)
    expected = reference.joint_rows(ids, offsets, hash_indices=hash_indices, dtype=dtype)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    assert torch.equal(ids, before)


@pytest.mark.parametrize("hash_indices", [False, True])
def test_joint_rows_of_bags(backend, hash_indices):
    features = 5
    offsets = torch.tensor([0, 3, 4, 1000, 1007, 90_000])
    bag_offsets = random_bags(6, 40 * features)
    count = int(bag_offsets[-1])
    feature = reference.bag_of_lookup(bag_offsets, count).long() % features
    ids = random_integers(10**6, count) - 500_000
    ids = ids if hash_indices else ids % offsets.diff()[feature]
    found = backend.run("joint_rows", ids, offsets, bag_offsets, hash_indices, torch.int64)
    expected = reference.joint_rows(
        ids, offsets, bag_offsets=bag_offsets, hash_indices=hash_indices
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("batch", "num_features", "dtypes"),
    spread(
        [0, 1, 63, 64, 65, 1000, 64],
        *([4, 26, 63, 64, 65, 150], [INTEGERS, [torch.int8], INTEGERS[:3], INTEGERS[1::2]]),
    ),
    ids=str,
)
def test_stack_ids(backend, batch, num_features, dtypes):
    features = torch.randperm(
        num_features, generator=torch.Generator().manual_seed(num_features)
    ).tolist()
    groups = []
    for i, dtype in enumerate(dtypes):
        ids = random_integers(2**62, len(features[i :: len(dtypes)]), batch, low=-(2**62), seed=i)
        groups.append(ids.to(dtype))
    order = [feature for i in range(len(dtypes)) for feature in features[i :: len(dtypes)]]
    stacked = backend.run("stack_ids", groups, order)
    assert stacked.dtype == (torch.int64 if torch.int64 in dtypes else torch.int32)
    assert torch.equal(stacked, reference.stack_ids(groups, order))
    for feature, column in zip(order, (c for group in groups for c in group), strict=True):
        assert torch.equal(stacked[:, feature], column.to(stacked.dtype))


@pytest.mark.parametrize("features", [[0, 1], [0, 1, 1], [0, 1, 3], [0, -1, 2], [0, 1, 2, 3]])
def test_stack_ids_takes_each_feature_once(backend, features):
    groups = [torch.zeros(2, 5, dtype=torch.int8), torch.zeros(1, 5, dtype=torch.int16)]
    with refusal("stack_ids", "features", kind=RuntimeError):
        backend.run("stack_ids", groups, features)
    with refusal("stack_ids", "features", 0, 2, kind=ValueError):
        reference.stack_ids(groups, features)


def test_stack_ids_refuses_groups_of_different_batches(backend):
    groups = [torch.zeros(1, 5, dtype=torch.int8), torch.zeros(1, 6, dtype=torch.int8)]
    with refusal("groups", "[features, B]", kind=RuntimeError):
        backend.run("stack_ids", groups, [0, 1])


@pytest.mark.parametrize("bad_id", [-1, 50, 2**40])
def test_joint_rows_names_the_first_bad_id(backend, bad_id):
    ids = random_integers(50, 2000, 26)
    ids[1500, 3] = bad_id
    ids[1203, 17] = bad_id
    offsets = torch.arange(27) * 50
    with refusal("feature 17", "sample 1203", bad_id, kind=RuntimeError):
        backend.run("joint_rows", ids, offsets, None, False, torch.int64)


def test_joint_rows_names_the_bag_of_a_bad_id(backend):
    offsets = torch.tensor([0, 2, 4])
    bag_offsets = torch.tensor([0, 1, 1, 3, 6])
    ids = torch.tensor([0, 1, 1, 0, 7, 1])
    with refusal("feature 1", "sample 1", 7, kind=RuntimeError):
        backend.run("joint_rows", ids, offsets, bag_offsets, False, torch.int64)


@pytest.mark.parametrize(("dim", "table_dtype", "dtype"), spread(DIMS, TABLES, FLOATS), ids=str)
def test_gather_equals_the_reference(backend, dim, table_dtype, dtype):
    dtype = backend.taken(dtype)
    table = randn(50, dim).to(table_dtype)
    for shape in [(0,), (1,), (7, 26)]:
        rows = random_integers(50, *shape)
        expected = reference.embedding_gather(table, rows, dtype)
        for row_type in (torch.int32, torch.int64):
            found = backend.run("embedding_gather", table, rows.to(row_type), None, dtype)
            assert found.dtype == dtype
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_numbers_of_any_size_are_rounded_as_torch_does(backend, dtype):
    """Bits of all signs and exponents, and those next to halfway between two results."""
    number = torch.arange(4096)
    spread = number * 0x9E3779B9 & 0xFFFFFFFF
    halfway = (spread & 0xFFFFF000) | torch.where(number % 4 == 1, 0, 0x1000)
    bits = torch.where(number % 2 == 0, spread, halfway)
    table = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int().view(torch.float32)
    table, rows = table.view(64, 64), torch.arange(64)
    found = backend.run("embedding_gather", table, rows, None, backend.taken(dtype))
    expected = table.to(found.dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(nan=0.0), expected.nan_to_num(nan=0.0))
    assert table.isnan().any()


@pytest.mark.parametrize(
    ("dim", "dtype"), [(16, torch.float32), (128, torch.float32), (64, torch.bfloat16)]
)
def test_gather_of_more_than_the_caches_hold(cpu_backend, dim, dtype):
    table = randn(1000, dim)
    rows = random_integers(1000, (20 << 20) // (dim * torch.tensor([], dtype=dtype).itemsize))
    found = cpu_backend.run("embedding_gather", table, rows, None, dtype)
    assert torch.equal(found, reference.embedding_gather(table, rows, dtype))


@pytest.mark.parametrize("value", [-1, 20, 2**31 - 1])
@pytest.mark.parametrize("row_type", [torch.int32, torch.int64])
def test_rows_outside_the_table_are_named(cpu_backend, value, row_type):
    rows = random_integers(20, 5000).to(row_type)
    rows[4321] = value
    rows[4900] = value
    table, rate = randn(20, 4), torch.tensor(0.3)
    bottom, by_sample = randn(1000, 4), rows.view(-1, 5)
    for call in (
        ("embedding_gather", table, rows, None, torch.float32),
        ("sort_rows", rows, 20),
        ("sgd_rows_unsorted", table, rows, randn(5000, 4), None, None, rate, None, None),
        ("gather_dot_interaction", table, by_sample, bottom, None, None, False),
    ):
        with refusal("position 4321", "20 rows", kind=RuntimeError):
            cpu_backend.run(*call)


@pytest.mark.parametrize(
    ("dim", "weighted", "table_dtype", "dtype"),
    spread(DIMS, [False, True], TABLES, FLOATS),
    ids=str,
)
def test_bag(backend, dim, weighted, table_dtype, dtype):
    dtype = backend.taken(dtype)
    table = randn(50, dim).to(table_dtype)
    for bags, lengths_below in [(0, 5), (1, 2), (60, 5), (3, 200)]:
        bag_offsets = random_bags(lengths_below, bags, seed=bags)
        count = int(bag_offsets[-1])
        rows = random_integers(50, count)
        scale = randn(count, seed=1) if weighted else None
        found = backend.run("embedding_bag", table, rows, bag_offsets, scale, None, dtype)
        value, magnitudes = (
            reference.embedding_bag(
                *(kind(table.double()), rows, bag_offsets, torch.float64), scale=s
            )
            for kind, s in (
                (torch.clone, scale),
                (torch.abs, None if scale is None else scale.abs()),
            )
        )
        lengths = bag_offsets.diff().unsqueeze(1)
        bound = error_bounds.sum_of_products(value, magnitudes, lengths, dtype)
        assert found.dtype == dtype
        assert bound.excess(found) <= 1


def test_rows_without_columns(cpu_backend):
    table, rows = torch.zeros(3, 0), torch.tensor([2, 0])
    found = cpu_backend.run("embedding_gather", table, rows, None, torch.float32)
    assert found.shape == (2, 0)


def test_lookups_have_the_same_bits_in_any_order(backend):
    table = randn(500, 24)
    bag_offsets = random_bags(30, 400)
    rows = random_integers(500, int(bag_offsets[-1]))
    for call in (
        ("embedding_gather", table, rows, None, torch.bfloat16),
        ("embedding_bag", table, rows, bag_offsets, None, None, torch.float32),
    ):
        backend.check_order(lambda call=call: backend.run(*call))


def check_sort(backend, rows, num_rows):
    """Compares with the one result that a stable sort has."""
    before = rows.clone()
    by_row, positions = backend.check_order(lambda: backend.run("sort_rows", rows, num_rows))
    expected, expected_positions = rows.flatten().sort(stable=True)
    assert (by_row.dtype, positions.dtype) == (rows.dtype, torch.int32)
    assert torch.equal(by_row, expected)
    assert torch.equal(positions.long(), expected_positions)
    assert torch.equal(rows, before)


@pytest.mark.parametrize(
    ("count", "num_rows", "row_type"),
    [
        *spread(
            [8193, 1000, 0, 70_000, 2, 1, 300],
            *([2_600_000, 2048, 1, 2**31 - 1, 2], [torch.int32, torch.int64]),
        ),
        (5000, 2**32 + 5, torch.int64),  # more rows than 32 bits name
        (5000, 2**45, torch.int64),
    ],
    ids=str,
)
def test_sort_is_stable(backend, count, num_rows, row_type):
    check_sort(backend, random_integers(num_rows, count, seed=count).to(row_type), num_rows)


@pytest.mark.parametrize("shift", [0, 5, 17])
def test_sort_of_rows_that_differ_in_a_few_bits(backend, shift):
    rows = (random_integers(9, 30, 100, seed=1) << shift) + (1 << 25)
    check_sort(backend, rows, 2**26)
