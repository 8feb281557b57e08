"""Head: the last linear layer, its gradient, and the factorization ∇W = U A that every separator
starts from."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from unsum.errors import NoHeadError, UnsumError, needed
from unsum.gradients import in_eval_mode, inputs_of
from unsum.network.flow import is_followed
from unsum.network.kept import while_unchanged
from unsum.network.layers import departure
from unsum.network.output import OutputCheck, check_output, writer_of_output
from unsum.network.passes import accepted_input
from unsum.running.sharing import once, version
from unsum.update import Update

# What may stand between the last linear layer and the output without changing softmax(logits) or
# its gradient.
_TRANSPARENT_MODULES = (nn.Identity, nn.Dropout, nn.Flatten, nn.LogSoftmax)
_TRANSPARENT_CALLS: set[Any] = {
    torch.flatten, torch.squeeze, torch.nn.functional.dropout, torch.nn.functional.log_softmax,
    torch.log_softmax, "flatten", "squeeze", "view", "reshape", "contiguous", "float",
    "log_softmax",
}  # fmt: skip
_ADAPTER = ".lora_"  # in the names of adapters' weights, as peft gives them
BLOCK = 1 << 22  # values converted to float64 at a time: 32 MB, whatever the gradient's size
# On a CPU a megabyte of them, which stays in its cache, but rows enough for a product: a quarter
# faster than a whole copy.
_CACHED, _ROWS = 1 << 17, 16


@dataclass(frozen=True)
class Factors:
    """∇W = U A with U (C×R) and A (R×H) of orthonormal rows, R the numerical rank, all in float64.

    `singular_values` are all of ∇W's where the Gram matrix showed them, else the norms of U's
    columns.
    """

    U: Tensor
    A: Tensor
    singular_values: Tensor


@dataclass(frozen=True)
class Head:
    """logits = features Wᵀ + b, with the gradient the server received for W and, where there is
    one, for b."""

    name: str
    W: Tensor  # (C, H)
    b: Tensor | None  # (C,)
    grad_W: Tensor  # (C, H)
    grad_b: Tensor | None  # (C,)
    reduction: str = "mean"
    # of a weight delta: grad_W = −delta / divisor; None for a gradient
    divisor: float | None = None
    # (C, H) what was sent and rounded, where something was taken off it; None for grad_W itself.
    sent_W: Tensor | None = None
    sent_b: Tensor | None = None  # (C,)
    check: OutputCheck = field(default_factory=OutputCheck)  # whether its output is the model's

    @property
    def of_bias(self) -> tuple[Tensor, Tensor]:
        """(C,) the bias and its gradient, for methods that need both."""
        return needed(self.b, "The head's bias"), needed(
            self.grad_b, "The gradient of the head's bias"
        )

    @classmethod
    def of(cls, model: nn.Module, update: Update, device: torch.device | str | None = None) -> Head:
        """The head of `model` with its gradient out of `update`, both checked to fit."""
        linear = find_head(model)[1]
        asked = str(device), version(linear.weight)
        return once(
            "head", (model, update, linear.weight), lambda: cls._of(model, update, device), *asked
        )

    @classmethod
    def _of(cls, model: nn.Module, update: Update, device: torch.device | str | None) -> Head:
        found = _found(model)
        name, linear = found.name, found.linear
        update.validate(model)
        # A weight that two layers share (tied embeddings) goes by the first one's name.
        shared = next(
            (other for other, parameter in model.named_parameters() if parameter is linear.weight),
            None,
        )
        weight_name = shared or (f"{name}.weight" if name else "weight")
        bias_name = f"{name}.bias" if name else "bias"
        if weight_name not in update.gradients:
            if any(_ADAPTER in sent for sent in update.gradients):
                raise UnsumError(
                    "Clients that train adapters alone send no gradient of the last linear layer, "
                    "where every attack here starts. Treat what they send as the samples "
                    "themselves, and protect it by noise with a proven bound (dp) or by secure "
                    f"aggregation. What the update lacks is {weight_name!r}."
                )
            raise UnsumError(
                f"The update lacks {weight_name!r}, the gradient of the last linear layer; "
                "nothing can be separated from it."
            )
        target = device if device is not None else linear.weight.device
        at = str(target), version(linear.weight)
        W = once(
            "weights",
            (linear.weight,),
            lambda: linear.weight.detach().to(target),
            *at,
            of_model=True,
        )
        grad_W = update.gradients[weight_name].detach().to(target)
        sent = {} if update.carried is None else update.carried.sent
        optional = (
            linear.bias,
            update.gradients.get(bias_name),
            sent.get(weight_name),
            sent.get(bias_name),
        )
        b, grad_b, sent_W, sent_b = (
            None if tensor is None else tensor.detach().to(target) for tensor in optional
        )
        divisor = (update.learning_rate or 1.0) if update.kind == "delta" else None
        return cls(
            name, W, b, grad_W, grad_b, update.reduction, divisor, sent_W, sent_b, found.check
        )

    @property
    def classes(self) -> int:
        return self.W.shape[0]

    def factorize(self, rank: int | None = None, threshold: float | None = None) -> Factors:
        """Factor ∇W through a small Gram matrix in float64, which shows all singular values.

        An SVD of the whole matrix is far slower and needs a float64 copy of it; the Gram matrix
        needs one pass in blocks. `rank` fixes R; otherwise R counts the singular values above
        `threshold` (1e-6 of the largest by default).
        """
        C, H = self.grad_W.shape
        eigenvalues, vectors = torch.linalg.eigh(gram(self.grad_W))
        singular_values = eigenvalues.flip(0).clamp_min(0).sqrt()
        if rank is None:
            limit = 1e-6 * float(singular_values[0]) if threshold is None else threshold
            rank = int((singular_values > limit).sum())
        rank = min(rank, int((singular_values > 0).sum()))
        vectors, kept = vectors.flip(1)[:, :rank], singular_values[:rank]
        A = orthonormal_rows(vectors.T if H < C else self.mixed_rows((vectors / kept).T))
        return Factors(self.projected(A), A, singular_values)

    def factorize_rows(self, rows: Tensor, row_weight: Tensor) -> Factors:
        """Factor ∇W whose row space the given rows span, without a Gram matrix: three thin
        products.

        The rows' own span is as noisy as they are; a least-squares step over all rows, weighted,
        averages that out.
        """
        A = orthonormal_rows(self.grad_W[rows].double())
        U = self.projected(A) * row_weight[:, None]
        inverse = torch.linalg.inv(U.T @ U) @ U.T
        A = orthonormal_rows(self.mixed_rows(inverse * row_weight))
        U = self.projected(A)
        return Factors(U, A, U.norm(dim=0))

    def projected(self, A: Tensor) -> Tensor:
        """∇W Aᵀ (C, R) in float64, block by block."""
        return self._times(self.grad_W, A)

    def logits(self, A: Tensor) -> Tensor:
        """A Wᵀ (R, C) in float64, block by block, without the bias."""
        return self._times(self.W, A).T.contiguous()

    def row_norms(self, matrix: Tensor) -> Tensor:
        """(C,) norms of the rows of W or ∇W in float64, block by block."""

        def norms() -> Tensor:
            return torch.cat([matrix[rows].double().norm(dim=1) for rows in self.row_blocks()])

        return once("row norms", (matrix,), norms, version(matrix), of_model=matrix is self.W)

    def _times(self, matrix: Tensor, A: Tensor) -> Tensor:
        return torch.cat([matrix[rows].double() @ A.T for rows in self.row_blocks()])

    def mixed_rows(self, mixing: Tensor) -> Tensor:
        """mixing ∇W (R, H) for mixing (R, C), in float64, block by block."""
        mixed = torch.zeros(
            len(mixing), self.grad_W.shape[1], dtype=torch.float64, device=mixing.device
        )
        for rows in self.row_blocks():
            mixed.addmm_(mixing[:, rows], self.grad_W[rows].double())
        return mixed

    def column_sums(self) -> Tensor:
        """(H,) of ∇W, in float64: zero under cross-entropy, up to what the client and the way here
        added."""
        ones = torch.ones(1, self.classes, dtype=torch.float64, device=self.grad_W.device)
        return once(
            "column sums", (self.grad_W,), lambda: self.mixed_rows(ones)[0], version(self.grad_W)
        )

    def row_blocks(self) -> list[slice]:
        """Rows lie together, in memory as in a mapped file: this is the way to stream."""
        C, H = self.grad_W.shape
        most = BLOCK // H
        return _slices(
            C, max(1, most if self.grad_W.is_cuda else min(most, max(_ROWS, _CACHED // H)))
        )

    def column_blocks(self) -> list[slice]:
        C, H = self.grad_W.shape
        return _slices(H, max(1, BLOCK // C))


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, length, step)]


def gram(matrix: Tensor) -> Tensor:
    """M Mᵀ, or Mᵀ M where that is the smaller of the two, in float64, block by block."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    products = torch.zeros(len(wide), len(wide), dtype=torch.float64, device=matrix.device)
    for columns in _slices(wide.shape[1], max(1, BLOCK // len(wide))):
        block = wide[:, columns].double()
        products.addmm_(block, block.T)
    return products


def orthonormal_rows(rows: Tensor) -> Tensor:
    """An orthonormal basis of the span of `rows` (R, H): Cholesky QR twice, all in fast matrix
    products."""
    basis: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    for _ in range(3):
        factor, failed = torch.linalg.cholesky_ex(basis @ basis.T)
        if bool(failed):  # worse conditioned than 1e8
            basis = torch.linalg.qr(rows.T)[0].T.contiguous()
            break
        basis = torch.linalg.solve_triangular(factor, basis, upper=False)
    return basis


@dataclass(frozen=True)
class _HeadFound:
    """The layer that is taken for the head, and what a pass showed of its output."""

    name: str
    linear: nn.Linear
    check: OutputCheck = field(default_factory=OutputCheck)


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """The name and module of the `nn.Linear` whose output is the model's logits.

    Follows the data flow back from the output (torch.fx), so that the order in which a class
    happens to define its layers does not matter. Models that cannot be traced are run: the layer is
    the one whose output they return. A layer that computes something else than its class, or whose
    output is not the model's, is refused.
    """
    found = _found(model)
    return found.name, found.linear


def _found(model: nn.Module) -> _HeadFound:
    if isinstance(model, nn.Linear):
        return _find_head(model)
    found = while_unchanged(model, "find head", lambda: _found_or_why_not(model))
    if isinstance(found, NoHeadError):
        raise NoHeadError(str(found), found.why)
    return found


def _found_or_why_not(model: nn.Module) -> _HeadFound | NoHeadError:
    try:
        return _find_head(model)
    except NoHeadError as reason:
        return NoHeadError(str(reason), reason.why)  # without its traceback


def _find_head(model: nn.Module) -> _HeadFound:
    name = "" if isinstance(model, nn.Linear) else _name_of_head(model)
    linear = model.get_submodule(name)
    if not isinstance(linear, nn.Linear):
        raise NoHeadError(
            f"The head {name!r} is a {type(linear).__name__}; unsum needs an nn.Linear."
        )
    problem = departure(linear)
    if problem is not None:
        raise _no_head(model, f"{name or 'it'!r} {problem}")
    check = check_output(model, name, linear) if name else OutputCheck()
    if check.departs:
        raise _no_head(model, f"{name!r} comes last, but {check.departs}")
    return _HeadFound(name, linear, check)


def _name_of_head(model: nn.Module) -> str:
    try:
        graph = _traced(model)
    except Exception:
        # tracing runs the user's own forward on proxies: any exception means "cannot be traced"
        return _name_by_passes(model)
    node = output_source(graph)
    while node is not None and _is_transparent(node, model):
        node = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if node is None or node.op != "call_module":
        raise _no_head(model, "its output does not come straight from a layer")
    name = str(node.target)
    module = model.get_submodule(name)
    if not isinstance(module, nn.Linear):
        raise _no_head(model, f"its output comes from {name!r}, a {type(module).__name__}")
    return name


def _name_by_passes(model: nn.Module) -> str:
    """Of a model that cannot be traced; the last Linear by registration where no pass can be made,
    which proves nothing."""
    linears = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise _no_head(model, "it has no nn.Linear at all")
    if accepted_input(model) is None:
        return linears[-1]
    name = writer_of_output(model, nn.Linear)
    if name is None:
        raise _no_head(model, "what it returns is the output of none of its nn.Linear layers")
    return name


def collect_features(model: nn.Module, images: Tensor, head: nn.Linear | None = None) -> Tensor:
    """(B, H) what reaches the head for `images`, in the mode (train or eval) that `model` is in; no
    gradient is kept.

    Give the `head` where hooks are on the model that must not see the passes by which it is found.
    """
    linear = find_head(model)[1] if head is None else head
    with inputs_of(linear) as seen, torch.no_grad():
        model(images)
    return seen[-1].detach().flatten(1)


def trace(model: nn.Module) -> fx.Graph:
    """The data flow of `model` in eval mode, which passes in that mode and in its own confirm.

    Whatever its own forward raises on proxies comes through.
    """
    graph = _traced(model)
    for train in {False, model.training}:
        confirmed = partial(is_followed, model, graph, train=train)
        if not while_unchanged(model, f"flow in train mode: {train}", confirmed):
            raise UnsumError(f"{type(model).__name__} computes something else than tracing shows.")
    return graph


def _traced(model: nn.Module) -> fx.Graph:
    def traced() -> fx.Graph:
        # auxiliary classifiers (GoogLeNet, Inception) add outputs in train mode
        with in_eval_mode(model):
            return fx.Tracer().trace(model)

    return once("trace", (model,), traced, of_model=True)


def output_source(graph: fx.Graph) -> fx.Node | None:
    """What the first of the outputs comes from."""
    value = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    while isinstance(value, (tuple, list)) and value:  # (logits, auxiliary…)
        value = value[0]
    return value if isinstance(value, fx.Node) else None


def _is_transparent(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), _TRANSPARENT_MODULES)
    if node.op == "call_function" and node.target is operator.getitem:
        return bool(node.args[1] == 0)
    return node.op in ("call_function", "call_method") and node.target in _TRANSPARENT_CALLS


def head_shape(model: nn.Module) -> tuple[int, int]:
    """(C, H) of the head; (1, 1) where the model has none, for answers without samples."""
    try:
        _, linear = find_head(model)
    except NoHeadError:
        return 1, 1
    return linear.out_features, linear.in_features


def _no_head(model: nn.Module, reason: str) -> NoHeadError:
    return NoHeadError(
        f"{type(model).__name__} has no linear head: {reason}; unsum needs a model whose logits "
        "are the output of an nn.Linear.",
        reason,
    )
