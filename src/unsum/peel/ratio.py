"""Phong's ratio at every dense layer: a row of the weight gradient over its bias gradient, for
batches of any size.

Unit i of a Linear has ∇W_i = Σ_s δ_is x_s and ∇b_i = Σ_s δ_is, so that

    ∇W_i / ∇b_i = Σ_s δ_is x_s / Σ_s δ_is

is a mixture of what the layer read; where one sample alone drives the unit (the ReLU is off for all
others) it is that sample's input, exactly. Nothing is solved for, and it does not matter how many
classes there are. All rows of all layers are candidates.

**Which of them are samples?** At the first layer the model answers: x with label y sends unit i a
derivative of δ_i(x, y) / B. Where ∇b_i is that number, x is one sample's; a mixture hits it by
chance alone. Rows that agree are no proof: with two classes and the same ReLUs on, all rows hold
the same mixture. So nothing here is called exact.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.gradients import inputs_of, main_output
from unsum.head import find_head, head_shape
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.network.chain import Shape, Step, first_linear
from unsum.network.shapes import picture_shape
from unsum.peel.method import PEELERS, Peeled, PeeledLayer
from unsum.update import Update

_AGREE = 1e-3  # relative distance of rows that hold the same input
_SKETCH = 16  # random directions that rows are compared in: layers may be 25 000 wide
_LARGEST = 1 << 26  # values of candidates that are kept: 256 MB in float32
_REPLAYED = 512  # candidates that are sent through the model
_CLASSES = 100  # beyond which labels are not tried one by one
# relative distance from 1/B that rounding leaves; where B must be found, too
_HIT, _HIT_UNTOLD = 1e-3, 1e-4
_LARGEST_BATCH = 256  # that is found


@dataclass(frozen=True)
class Candidates:
    """(n, d) inputs of one dense layer, those that most rows agree on first, with (n,) the row that
    each was read from."""

    layer: str
    inputs: Tensor
    rows: Tensor


@dataclass(frozen=True)
class _Samples:
    """(n, …) inputs of the model that it takes for single samples, with (n,) labels and relative
    misfits."""

    inputs: Tensor
    labels: Tensor
    misfits: Tensor
    logits: Tensor
    features: Tensor


def candidates(model: nn.Module, update: Update, seed: int = 0) -> list[Candidates]:
    """Of every dense layer whose weight and bias gradient the update holds."""
    update.validate(model)
    found = []
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        grad_W, grad_b = (update.gradients.get(f"{prefix}{part}") for part in ("weight", "bias"))
        # attention uses its weight, and calls it never
        if isinstance(module, NonDynamicallyQuantizableLinear):
            continue
        if (
            isinstance(module, nn.Linear)
            and grad_W is not None
            and grad_b is not None
            and bool(grad_b.any())
        ):
            found.append(_of_layer(name or type(module).__name__, grad_W, grad_b, seed))
    return found


def read_rows(
    model: nn.Module, update: Update, *, batch_size: int | None = None, seed: int = 0
) -> Leak:
    """Every candidate in `.readings`; those of the first layer that the model takes for samples are
    the leak's own rows."""
    found = candidates(model, update, seed)
    if not found:
        raise UnsumError(
            "The update holds no dense layer with a gradient of its bias, so no row can be divided "
            "by it."
        )
    step, flattens, obstacle = _first(model, update)
    samples, notes = _nobody(model), [obstacle] if obstacle else []
    first = next((layer for layer in found if step is not None and layer.layer == step.name), None)
    known = batch_size or update.batch_size
    if step is not None and first is not None:
        shape, guessed = picture_shape(step, flattens, None)
        samples, said = _replayed(model, update, step, first, shape, known)
        notes += [*said, *(guessed if len(samples.labels) else [])]
    counts = ", ".join(f"{len(layer.inputs)} at {layer.layer!r}" for layer in found)
    notes.append(
        f"Different inputs held by rows of the dense layers, mixtures among them: {counts}."
    )
    classes = samples.logits.shape[1]
    return Leak(
        method="ratio",
        targets=nn.functional.one_hot(samples.labels, classes).double(),
        logits=samples.logits,
        features=samples.features,
        residual=math.nan,
        predicted_error=float(samples.misfits.max()) if len(samples.misfits) else math.nan,
        exact=False,
        knowledge=Knowledge(batch_size=known),
        inputs=samples.inputs,
        inputs_exact=grant_each(samples.misfits, above=False),
        readings={layer.layer: layer.inputs for layer in found},
        notes=notes,
    )


@PEELERS.register(
    "ratio",
    summary=(
        "inputs that some unit of the first layer sees alone, by the ratio of its gradients, for "
        "batches of any size"
    ),
    needs="a first Linear with bias, and a model that takes one input at a time",
)
def ratio(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: Shape | None, seed: int
) -> Peeled:
    """The inputs that the model takes for single samples; never certified."""
    step, flattens = first_linear(model, update)
    known = leak.knowledge.known_batch_size if leak is not None else None
    found = read_rows(model, update, batch_size=known, seed=seed)
    assert found.inputs is not None
    assert found.inputs_exact is not None
    if not found.batch_size:
        raise UnsumError(
            f"No row of the first layer {step.name!r} is of one sample alone; use 'layers'."
        )
    inputs = found.inputs
    if shape is not None:
        inputs = inputs.view(len(inputs), *picture_shape(step, flattens, shape)[0])
    errors = torch.full((len(inputs),), found.predicted_error, dtype=torch.float64)
    layer = PeeledLayer(
        step.name, found.predicted_error, math.nan, inputs.numel(), step.grad_W.numel()
    )
    return Peeled("ratio", inputs, errors, found.inputs_exact, True, [layer], found.notes)


def _of_layer(name: str, grad_W: Tensor, grad_b: Tensor, seed: int) -> Candidates:
    """One candidate for every group of rows that agree; of each group, the row of the largest bias
    is the most precise."""
    order = grad_b.abs().argsort(descending=True)[: max(1, _LARGEST // grad_W.shape[1])]
    rows = order[grad_b[order] != 0]
    inputs = grad_W[rows] / grad_b[rows, None]
    rows, inputs = rows[inputs.isfinite().all(1)], inputs[inputs.isfinite().all(1)]
    draw = torch.randn(inputs.shape[1], _SKETCH, generator=torch.Generator().manual_seed(seed))
    sketch = inputs.double() @ draw.to(inputs.device).double()
    near = torch.cdist(sketch, sketch) < _AGREE * sketch.norm(dim=1, keepdim=True)
    free, chosen = torch.ones_like(rows, dtype=torch.bool), []
    for i in near.sum(1).argsort(descending=True, stable=True).tolist():
        if bool(free[i]):
            group = near[i] & free
            chosen.append(int(group.nonzero()[0, 0]) if bool(group.any()) else i)
            free &= ~group
            free[i] = False
    return Candidates(name, inputs[chosen], rows[chosen])


def _first(model: nn.Module, update: Update) -> tuple[Step | None, bool, str]:
    """The Linear that takes the model's own input and whether the model flattens before it, or why
    there is none."""
    try:
        return *first_linear(model, update), ""
    except UnsumError as reason:
        return (
            None,
            False,
            f"No input of the model is read: {str(reason).split('; use')[0].rstrip('.')}.",
        )


def _nobody(model: nn.Module) -> _Samples:
    classes, features = head_shape(model)
    whole, part = torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
    width = next(iter(model.parameters()))[:0].new_zeros(0, features)
    return _Samples(part[:, None], whole, part, part.new_zeros(0, classes), width)


def _replayed(
    model: nn.Module,
    update: Update,
    step: Step,
    found: Candidates,
    shape: Shape,
    batch_size: int | None,
) -> tuple[_Samples, list[str]]:
    """The candidates that the model, asked for each with every label, takes for one sample."""
    _, head = find_head(model)
    mixing = [m for m in model.modules() if isinstance(m, _BatchNorm | nn.Dropout) and m.training]
    if mixing or head.out_features > _CLASSES or not update.scale_known:
        return _nobody(model), [
            "Which rows are of one sample was not asked: the model does not say that of this one."
        ]
    inputs = found.inputs[:_REPLAYED].double().view(-1, *shape)
    rows = found.rows[:_REPLAYED]
    assert step.grad_b is not None  # or there would be no candidates
    received = step.grad_b.double()[rows]
    try:
        slopes, logits, features = _slopes(model, step, inputs, rows)
    except (RuntimeError, ValueError) as error:
        return _nobody(model), [
            f"The model does not take what the rows hold: {str(error).splitlines()[0]}."
        ]
    weights = received[:, None] / slopes  # 1/B, or 1 of a sum, for the label of a single sample
    expected = 1.0 if update.reduction == "sum" else None if batch_size is None else 1 / batch_size
    misfits, labels = _misfits(weights, expected).min(1)
    hits = (misfits < (_HIT if expected is not None else _HIT_UNTOLD)).nonzero()[:, 0]
    if batch_size is not None and len(hits) > batch_size:
        hits = _distinct(inputs.flatten(1), misfits, hits, batch_size)
    kept = _Samples(inputs[hits], labels[hits], misfits[hits], logits[hits], features[hits])
    return kept, [
        f"{len(hits)} rows of {step.name!r} hold what the model takes for one sample's input."
    ]


def _distinct(inputs: Tensor, misfits: Tensor, hits: Tensor, most: int) -> Tensor:
    """At most so many of the hits: noise gives rows of one sample several inputs, of which the one
    with the smallest misfit is kept, and then those that are farthest from all that are."""
    far = torch.cdist(inputs[hits], inputs[hits])
    chosen = [int(misfits[hits].argmin())]
    while len(chosen) < most:
        chosen.append(int(far[chosen].amin(0).argmax()))
    return hits[sorted(chosen)]


def _slopes(
    model: nn.Module, step: Step, inputs: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """((n, C) ∂loss/∂z of each candidate's own unit for every label, logits, features), in float64
    by a copy of the model."""
    names = {module: name for name, module in model.named_modules()}
    copied = copy.deepcopy(model).double()
    layer = copied.get_submodule(names[step.module])
    outputs: list[Tensor] = []
    _, head = find_head(copied)  # by passes, which the hook must not see
    keep = layer.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    with keep, inputs_of(head) as seen, torch.enable_grad():
        logits = main_output(copied(inputs))
        z, own = outputs[0], torch.arange(len(inputs), device=inputs.device)

        def of_unit(value: Tensor) -> Tensor:
            return torch.autograd.grad(value.sum(), z, retain_graph=True)[0][own, rows]

        expected = of_unit(logits * logits.detach().softmax(1))
        slopes = torch.stack(
            [expected - of_unit(logits[:, c]) for c in range(logits.shape[1])], dim=1
        )
    return slopes, logits.detach(), seen[-1].detach().flatten(1)


def _misfits(weights: Tensor, expected: float | None) -> Tensor:
    """(n, C) how far each weight is from the expected one; where B is not known, from the 1/B that
    most candidates come near."""
    if expected is not None:
        return (weights / expected - 1).abs().nan_to_num(nan=math.inf)
    sizes = 1 / weights
    whole = sizes.round()
    off = (sizes / whole - 1).abs().nan_to_num(nan=math.inf)
    off = off.masked_fill((whole < 1) | (whole > _LARGEST_BATCH), math.inf)
    votes = whole[off < _HIT_UNTOLD].long()
    # one among many may be chance
    if not len(votes) or (len(weights) > 1 and int(votes.bincount().max()) < 2):
        return torch.full_like(off, math.inf)
    return off.masked_fill(whole != int(votes.bincount().argmax()), math.inf)
