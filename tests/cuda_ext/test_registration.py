# SPDX-License-Identifier: Apache-2.0
"""The compiled ops as citizens of torch: opcheck, autograd, torch.compile, export, AOTInductor."""

import textwrap

import pytest
import torch
from torch import library as torch_library

from cuda_ext import ops, reference
from cuda_ext.row_rules import ROW_RULES
from tests import harness
from tests.cuda_ext.conftest import randn
from tests.tools import needs

pytestmark = needs("compiled cuda_ext kernels")

OFFSETS = torch.tensor([0, 5, 12, 30])
IDS = torch.tensor([[0, 6, 17], [4, 0, 3], [0, 6, 0], [2, 5, 17]])
ROWS = reference.joint_rows(IDS, OFFSETS, dtype=torch.int32)
BAGS = torch.tensor([0, 3, 3, 7, 12])
WIDTH = reference.interaction_width(IDS.shape[1] + 1, 8)


def update_arguments(rule):
    table = randn(30, 8)
    state = list(ops.row_optimizer_state(rule, table).values())
    rows, positions = ops.sort_rows(ROWS, 30)
    return (
        *(table, state, rows, positions, randn(12, 8, seed=1), None, None),
        *(torch.tensor(0.1), torch.tensor(1.0), torch.tensor(0.5), torch.tensor(False)),
        *(rule, 0.0, list(ROW_RULES[rule].hyperparameters.values()), 0),
    )


def attention_arguments(queries):
    fused = randn(9, 16 if queries else 24, seed=2).requires_grad_()
    return (
        *(randn(4, 8).requires_grad_() if queries else None, fused),
        *(torch.tensor([0, 1, 4] if queries else [0, 3, 9]), torch.tensor([0, 3, 9])),
        *(torch.tensor([2, 0, 5, 3]) if queries else None, True, 2, None, 0),
    )


def top_rows_arguments():
    packed = ops.pack_rows(randn(70, 5), randn(70, seed=1))
    return (
        *(randn(3, 5, seed=2), packed.table, packed.codes, packed.scales, packed.biases),
        *(packed.residual, packed.code_norm, torch.tensor([4, 9]), torch.tensor([0, 0, 2, 2]), 4),
    )


CASES = {
    "attention": lambda: attention_arguments(queries=False),
    "attention_of_queries": lambda: attention_arguments(queries=True),
    "attention_backward": lambda: (
        *(randn(4, 8), randn(2, 4, 2, seed=3).abs()),
        *(t.detach() if isinstance(t, torch.Tensor) else t for t in attention_arguments(True)),
    ),
    "dot_interaction": lambda: (
        randn(4, 3, 8).requires_grad_(),
        randn(4, 8, seed=1).requires_grad_(),
        False,
    ),
    "dot_interaction_backward": lambda: (randn(4, 16), randn(4, 3, 8), randn(4, 8), False),
    "gather_dot_interaction": lambda: (
        randn(30, 8),
        ROWS,
        randn(4, 8).requires_grad_(),
        ops.row_gradient_anchor((4, 3, 8), torch.float32, torch.device("cpu")),
        None,
        False,
    ),
    "gather_dot_interaction_with_dense_gradient": lambda: (
        randn(30, 8).requires_grad_(),
        ROWS,
        randn(4, 8).requires_grad_(),
        None,
        None,
        False,
    ),
    "gather_dot_interaction_backward": lambda: (
        *(randn(4, 16), randn(30, 8), ROWS, randn(4, 8), None, False),
    ),
    "joint_rows": lambda: (IDS, OFFSETS, None, False, torch.int32),
    "joint_rows_reporting": lambda: (
        *(IDS * 2, OFFSETS, None, torch.tensor([2**62]), False, torch.int32),
    ),
    "embedding_gather": lambda: (randn(30, 8).requires_grad_(), ROWS, None, torch.float32),
    "embedding_bag": lambda: (
        randn(30, 8).requires_grad_(),
        ROWS.reshape(-1),
        BAGS,
        torch.linspace(0.1, 1, 12),
        None,
        torch.float32,
    ),
    "dlrm_forward": lambda: (
        *(randn(4, 5), IDS, OFFSETS, False, randn(30, 8), randn(5 * 32), randn(32), [5, 8]),
        *(randn(WIDTH * 32), randn(32), [WIDTH, 1]),
    ),
    "mlp_forward": lambda: (randn(4, 5), randn(5 * 32), randn(32), [5, 7], True),
    "relu_backward": lambda: (randn(4, 5), randn(4, 5, seed=1), True),
    "sort_rows": lambda: (ROWS, 30),
    "stack_ids": lambda: (
        [IDS.t().contiguous().to(torch.int8), IDS.t().contiguous()],
        [5, 3, 1, 0, 2, 4],
    ),
    "top_rows": lambda: top_rows_arguments(),
    "transposed_product": lambda: (randn(5, 3), randn(5, 8, seed=1)),
    "update_rows": lambda: update_arguments("adam"),
    "sgd_rows_unsorted": lambda: (
        *(randn(30, 8), ROWS.reshape(-1), randn(12, 8, seed=1), None, None),
        *(torch.tensor(0.1), torch.tensor(0.5), torch.tensor(False)),
    ),
}


NAMES = {
    name.removeprefix("cuda_ext::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("cuda_ext::")
}


def op_of(case):
    """Returns the longest name that a case begins with."""
    return max((name for name in NAMES if case.startswith(name)), key=len)


@pytest.mark.parametrize("case", CASES)
def test_opcheck(case):
    torch_library.opcheck(getattr(torch.ops.cuda_ext, op_of(case)).default, CASES[case]())


def test_every_op_is_checked():
    on_a_gpu = {"output_layer", "output_layer_backward", "cross_entropy"}  # see test_output_layer
    about = {"cpu_instruction_set", "cpu_is_intel", "use_cpu_kernels"}
    of_pages = {"bring_in_rows", "drop_old_pages"}  # opcheck's copies do not start at a page
    assert NAMES - set(map(op_of, CASES)) == on_a_gpu | about | of_pages


class TwoTower(torch.nn.Module):
    """A small model over the ops, with its table outside autograd."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", randn(30, 8))
        self.register_buffer("offsets", OFFSETS)
        self.bottom = torch.nn.Linear(5, 8)
        self.top = torch.nn.Linear(16, 1)

    def forward(self, x, ids):
        rows = ops.joint_rows(ids, self.offsets, dtype=torch.int32)
        return self.top(ops.gather_dot_interaction(self.table, rows, self.bottom(x)))


@pytest.mark.parametrize(
    "backend",
    ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, needs("Python headers")])],
)
def test_compiled_training_step_equals_eager(backend):
    model = TwoTower()
    x = randn(4, 5)

    def step(table, anchor):
        rows = ops.joint_rows(IDS, OFFSETS, dtype=torch.int32)
        bottom = model.bottom(x)
        hidden = ops.gather_dot_interaction(table, rows, bottom, anchor=anchor)
        return model.top(hidden).square().sum()

    def update(table, gradient):
        rows = ops.joint_rows(IDS, OFFSETS, dtype=torch.int32).reshape(-1)
        step = ops.RowStep(lr=torch.tensor(0.1), step=torch.tensor(1.0))
        ops.update_rows("sgd", table, {}, rows, gradient, step)

    results = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend=backend)):
        torch.compiler.reset()
        table = model.table.clone()
        storage = table.data_ptr()
        anchor = ops.row_gradient_anchor((4, 3, 8), torch.float32, table.device)
        model.zero_grad()
        wrap(step)(table, anchor).backward()
        with torch.no_grad():
            wrap(update)(table, anchor.grad.reshape(-1, 8))
        assert table.data_ptr() == storage
        results.append((table, anchor.grad, model.bottom.weight.grad.clone()))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)


@pytest.fixture
def exported():
    """A model, its program with a dynamic batch, and an input of another size."""
    model = TwoTower().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    with torch.no_grad():
        program = torch.export.export(
            model, (randn(4, 5), IDS), dynamic_shapes={"x": {0: batch}, "ids": {0: batch}}
        )
        yield model, program, (randn(9, 5, seed=3), IDS[torch.arange(9) % 4])


def test_export_with_a_dynamic_batch(exported):
    model, program, inputs = exported
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("cuda_ext.gather_dot_interaction" in target for target in targets)


@pytest.mark.release
def test_aotinductor_package_runs_in_a_fresh_process(exported, tmp_path):
    model, program, inputs = exported
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "model.pt2")
    )
    torch.save((*inputs, model(*inputs)), tmp_path / "expected.pt")
    script = f"""
        import torch
        from cuda_ext import library
        assert library.LOAD_ERROR is None
        model = torch._inductor.aoti_load_package({package!r})
        x, ids, expected = torch.load({str(tmp_path / "expected.pt")!r})
        torch.testing.assert_close(model(x, ids), expected)
        print("same")
    """
    assert harness.python("-c", textwrap.dedent(script)).stdout == "same\n"


@pytest.mark.parametrize("lookup", [ops.embedding_gather, ops.sparse_embedding])
def test_gradients_of_a_table_serve_optimizers_of_torch(lookup):
    table = torch.nn.Parameter(randn(30, 8))
    twin = torch.nn.Parameter(table.detach().clone())
    is_sparse, weights = lookup is ops.sparse_embedding, randn(4, 3, 8, seed=2)
    (lookup(table, ROWS, torch.float32) * weights).sum().backward()
    (torch.nn.functional.embedding(ROWS, twin, sparse=is_sparse) * weights).sum().backward()
    assert table.grad.is_sparse == is_sparse
    if is_sparse:
        assert table.grad._nnz() == 12
    optimizer = torch.optim.SparseAdam if is_sparse else torch.optim.Adam
    for parameter in (table, twin):
        optimizer([parameter], lr=0.1).step()
    torch.testing.assert_close(table.grad.to_dense(), twin.grad.to_dense())
    torch.testing.assert_close(table.detach(), twin.detach())


def test_gradient_of_a_table_of_bags():
    table, weights = randn(30, 8).requires_grad_(), randn(4, 8, seed=2)
    scale = torch.linspace(0.1, 1, 12)
    found, defined = (
        embedding_bag(table, ROWS.reshape(-1), BAGS, torch.float32, scale=scale)
        for embedding_bag in (ops.embedding_bag, reference.embedding_bag)
    )
    torch.testing.assert_close(found, defined)
    gradients = (torch.autograd.grad(bags, table, weights) for bags in (found, defined))
    torch.testing.assert_close(*gradients)


def test_the_anchor_holds_the_row_gradient_and_no_memory():
    anchor = ops.row_gradient_anchor((4, 3, 8), torch.float32, torch.device("cpu"))
    assert anchor.untyped_storage().nbytes() == 4
    table, weights = randn(30, 8), randn(4, 3, 8, seed=2)
    (ops.embedding_gather(table, ROWS, torch.float32, anchor=anchor) * weights).sum().backward()
    assert torch.equal(anchor.grad, weights)
