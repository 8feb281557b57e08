"""Checks of the model, of a batch or text against it, and of the machine: can it be taken apart,
and does it fit into memory?"""

from __future__ import annotations

import os
from collections import Counter
from math import prod

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unsum.audit.text import TextInputs
from unsum.data import Batch
from unsum.doctor.finding import Said
from unsum.errors import UnsumError
from unsum.head import BLOCK, find_head
from unsum.invert import load_inverse
from unsum.invert.layout import feature_layout
from unsum.models.language import TextTask, Tokenizer, embedding_width, looks_ahead, task_of
from unsum.network.conv_pair import ConvPair, find_pairs
from unsum.network.shapes import shapes_read
from unsum.peel.residual.reach import reach
from unsum.spans.tokens import find_patches
from unsum.spans.tokens.search import MOST
from unsum.update import Update

_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
_DOUBLE = 8  # bytes
# times the update's own size, the most that reading the layers below the head took (a ViT-B/32;
# convolutions: 7)
_BELOW = 20


def head(model: nn.Module) -> Said:
    try:
        name, linear = find_head(model)
    except UnsumError as error:
        return "will not work", str(error)
    classes, features = linear.weight.shape
    return (
        "ok",
        (
            f"The last linear layer is {name or 'the model itself'!r}: {classes} classes, "
            f"{features:,} features."
        ),
    )


def trainable_head(model: nn.Module) -> Said:
    name, linear = find_head(model)
    if not linear.weight.requires_grad:
        return (
            "will not work",
            f"The head {name!r} is frozen, so no update holds its gradient; clients must train it.",
        )
    return "ok", "The head is trained, so updates hold its gradient."


def bias(model: nn.Module) -> Said:
    if find_head(model)[1].bias is None:
        return (
            "warning",
            (
                "The head has no bias: the exact attack works without one, but fgla, phong and "
                "most label rules do not."
            ),
        )
    return "ok", "The head has a bias, which every attack can use."


def features(model: nn.Module, size: int) -> Said:
    """How much of a picture the features can hold."""
    try:
        layout = feature_layout(model, size)
    except Exception as error:  # the model's own forward
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        return "will not work", f"The model does not take one picture of {size}²: {reason}."
    shape = " × ".join(str(side) for side in layout.shape)
    if layout.kind == "vector":
        return (
            "warning",
            (
                f"The head reads a vector of {shape}: labels and features leak, pictures come back "
                "poorly."
            ),
        )
    kind = "a map" if layout.kind == "map" else "tokens"
    return "ok", f"The head reads {kind} of {shape}: places are kept, and pictures can come back."


def batch_norm(model: nn.Module, train: bool) -> Said:
    # A graph that torch.export made holds the `training` flag of every batch_norm.
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    fixed = [
        bool(node.args[5]) for node in nodes if node.target is torch.ops.aten.batch_norm.default
    ]
    if fixed:
        mode = "train" if fixed[0] else "eval"
        sentence = (
            f"{len(fixed)} layers whose mode was fixed at the export: {mode} mode, whatever is "
            "asked for."
        )
        return "ok" if fixed[0] == train else "warning", sentence
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return "ok", "There is none, so train and eval mode give the same features."
    if not train:
        return (
            "ok",
            f"{len(layers)} layers with running statistics (eval mode), as a client seldom trains.",
        )
    return "warning", (
        f"{len(layers)} layers with the batch's own statistics (train mode): features depend on "
        "the whole batch; the attack takes that as it is, but an inverse must have been trained "
        "for it."
    )


def dropout(model: nn.Module, train: bool, *, text: bool = False) -> Said:
    rates = [
        module.p for module in model.modules() if isinstance(module, _DROPOUTS) and module.p > 0
    ]
    if not rates or not train:
        return "ok", "There is none to reckon with." if not rates else "Switched off in eval mode."
    if text:
        return (
            "warning",
            (
                f"It drops up to {max(rates):.0%} in train mode, which the attack on text cannot "
                "follow."
            ),
        )
    return "warning", (
        f"{len(rates)} layers drop up to {max(rates):.0%} in train mode: features come back as "
        "they were after dropping, and pictures of them are worse."
    )


def precision(model: nn.Module) -> Said:
    kinds = {p.dtype for p in model.parameters()}
    names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    if kinds & {torch.float16, torch.bfloat16}:
        return (
            "warning",
            f"Weights are {names}: gradients of half precision hide samples that hardly count.",
        )
    if len(kinds) > 1:
        return "warning", f"Weights are of several kinds ({names})."
    return "ok", f"Weights are {names}."


def finite_weights(model: nn.Module) -> Said:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return "will not work", f"The weights {name!r} hold NaN or Inf; load others."
    return "ok", "All are finite."


def inverse(model: nn.Module, path: str | None) -> Said:
    try:
        found = load_inverse(model, path)
    except UnsumError as error:
        if path is not None:
            return "will not work", str(error)
        return (
            "warning",
            f"{error} Labels and features leak without.",
        )
    return "ok", f"There is one for this backbone, for photos of {found.card['size']}²."


def size_against_classes(model: nn.Module, size: int) -> Said:
    """The exact attack solves for B samples in C − 1 independent rows."""
    classes = find_head(model)[1].out_features
    if size > classes - 1:
        return "warning", (
            f"{size} samples are more than the {classes - 1} that {classes} classes allow the last "
            "layer alone to tell apart. Two dense layers wider than the batch give it away all the "
            "same ('spans'); where labels are granted, 'crowded' reads what it can off the "
            "features' zeros. Label rules still work."
        )
    return (
        "ok",
        f"{size} samples of {classes} classes: at most {classes - 1} can be taken apart exactly.",
    )


def size_against_features(model: nn.Module, size: int) -> Said:
    width = find_head(model)[1].in_features
    if size > width:
        return (
            "warning",
            f"{size} samples in {width} features cannot be independent; expect no exact answer.",
        )
    return "ok", f"{width:,} features for {size} samples."


def depth(model: nn.Module, samples: int, size: int) -> Said:
    """How far below the pooling the batch can be read, by counting places against channels."""
    try:
        told = reach(model, samples, size)
        start, shape = told.start, told.start_shape
        further = f", and blocks can be undone down to what {told.deepest!r} reads; {told.stop}"
    except UnsumError:
        pairs = _last_pairs(model)
        if not pairs:
            return (
                "ok",
                (
                    "No two convolutions of stride 1 follow each other; the head and dense layers "
                    "may tell all the same."
                ),
            )
        start, further = pairs[0].first.name, " ('spans')"
        shape = shapes_read(model, [pairs[0].first.conv], (3, size, size))[pairs[0].first.conv]
    layer, places = model.get_submodule(start), prod(shape[1:])
    channels = layer.out_channels if isinstance(layer, nn.Conv2d) else 0
    if samples * places >= channels:
        most = (channels - 1) // places
        fewer = (
            f"up to {most} samples they would"
            if most
            else f"photos of a smaller side than {size} they may"
        )
        return "ok", (
            f"{samples} samples have {samples * places:,} places in the maps that {start!r} reads, "
            f"and its gradient has {channels} channels: the last convolutions do not tell the maps "
            f"apart; {fewer}."
        )
    return (
        "warning",
        f"The last convolutions tell every sample's map, whatever pooling stands above{further}.",
    )


def _last_pairs(model: nn.Module) -> list[ConvPair]:
    """Two convolutions in a row that 'spans' would read, the nearest to the logits first, if all
    gradients are sent."""
    sent = Update({name: parameter.detach() for name, parameter in model.named_parameters()})
    try:
        return find_pairs(model, sent)
    except UnsumError:  # it cannot be traced
        return []


def tokens(model: nn.Module, samples: int) -> Said:
    """What comes back of a vision transformer, by counting tokens against channels."""
    try:
        found = find_patches(model)
    except UnsumError as error:
        return "ok", str(error)
    N, T, d = found.count, found.tokens, found.width
    counted = f"{samples} pictures have {samples * T:,} tokens, and the first block {d} channels"
    if samples == 1 and (d > N if found.positions else found.first is not None and d > N + T):
        return (
            "warning",
            (
                f"One picture of {N} patches in {d} channels: one linear solve gives it back "
                "('tokens')."
            ),
        )
    if samples > 1 and 2 * samples * T <= d and found.block is not None:
        return (
            "warning",
            f"{counted}: nearly every token is told apart, and the pictures come back ('tokens').",
        )
    if samples > 1 and samples * T <= MOST * d and found.block is not None:
        return (
            "warning",
            (
                f"{counted}: crowded, but some such batches were told apart, and their pictures "
                "come back ('tokens')."
            ),
        )
    most = int(MOST * d) // T if found.block is not None else 0
    told = (
        f"up to {most} pictures they may be"
        if most > 1
        else "one picture would come back"
        if d > N
        else "one's are"
    )
    return (
        "ok",
        (
            f"{counted}: too many to be told apart ({told}); labels and class tokens leak all the "
            "same."
        ),
    )


def labels(model: nn.Module, batch: Batch) -> Said:
    classes, most = (
        find_head(model)[1].out_features,
        int(batch.targets.max()) if batch.targets.ndim == 1 else -1,
    )
    if most >= classes:
        return (
            "will not work",
            f"The data have a label {most}, and the model only {classes} classes.",
        )
    counts = Counter(batch.targets.tolist() if batch.targets.ndim == 1 else [])
    shared = sum(count for count in counts.values() if count > 1)
    others = f"; {shared} samples share a label with another" if shared else ""
    return "ok", f"All within the model's classes{others}."


def variety(batch: Batch, what: str = "pictures") -> Said:
    """Two copies of one sample have one feature vector between them."""
    flat = batch.images.flatten(1)
    copies = len(flat) - len(flat.unique(dim=0))
    if copies:
        return (
            "warning",
            f"{copies} {what} are copies of others in the batch; copies cannot be told apart.",
        )
    return "ok", f"{len(flat)} different {what}."


def needed_bytes(classes: int, features: int) -> int:
    """The most that the exact attack holds at once besides the model and the update, in float64.

    A Gram matrix with its eigenvectors, the factors U and A before their rank is known, and two
    blocks of the gradient; where there are fewer features than classes, the whole of it. Measured
    peaks were 75 to 95 % of this.
    """
    small, whole = min(classes, features), classes * features
    blocks = 2 * min(whole, BLOCK) + (whole if features < classes else 0)
    return _DOUBLE * (3 * small**2 + 2 * small * (classes + features) + blocks)


def free_bytes(device: torch.device) -> int | None:
    """None where it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def memory(model: nn.Module, device: torch.device) -> Said:
    _, linear = find_head(model)
    head = needed_bytes(linear.out_features, linear.in_features)
    below = _BELOW * sum(weights.nbytes for weights in model.parameters() if weights.requires_grad)
    needs = (
        f"The attack on the last layer needs about {_size(head)}, attacks on the layers below it "
        f"up to {_size(below)}"
    )
    free = free_bytes(device)
    if free is None:
        return "warning", f"{needs}; how much is free cannot be told here."
    return (
        "warning" if head + below > free else "ok",
        f"{needs}; {_size(free)} are free on {device.type}.",
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{max(1, round(count / 1e6))} MB"


def tokenizer(found: Tokenizer) -> Said:
    if found.own is None:
        return (
            "warning",
            "There is none beside the model, so text is token numbers; save one into its folder.",
        )
    return "ok", "There is one in the folder: the report shows text."


def positions(inputs: TextInputs) -> Said:
    """Fewer positions that read something different than features: then each of them is a direction
    of its own."""
    model = inputs.loaded.model
    width = embedding_width(model)
    sequences = {tuple(sequence) for sequence in inputs.batch.sequences}
    if looks_ahead(model):
        number, what = sum(map(len, sequences)), "tokens"
    else:
        # the last token of all is predicted, never read
        unread = 1 if task_of(model) is TextTask.NEXT else 0
        ends = {
            sequence[:end] for sequence in sequences for end in range(1, len(sequence) + 1 - unread)
        }
        number, what = len(ends), "distinct prefixes"
    count = f"{len(inputs.batch.sequences)} texts have {number} {what}"
    if number >= width:
        return (
            "warning",
            (
                f"{count}, and the attack on text reads fewer than the {width} features; it will "
                "not decide."
            ),
        )
    return "ok", f"{count}, fewer than the {width} features: the texts come back whole."
