"""Run a matcher: find shape and labels, pose the problem, solve it, and say what came of it as a
`Leak`."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError, needed
from unsum.files.tensor_file import read_tensors
from unsum.gradients import norm, quiet, with_features
from unsum.head import find_head
from unsum.knowledge import Knowledge
from unsum.labels import LABEL_RULES, Clues
from unsum.leak import Leak
from unsum.match.engine import Matched
from unsum.match.method import MATCHERS, Matcher
from unsum.match.problem import Problem, picture_shape, pose
from unsum.running.declared import check_pictures
from unsum.running.progress import SILENT, Progress
from unsum.separate import answered
from unsum.update import Update


def match(
    model: nn.Module,
    update: Update,
    method: str = "ig",
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    label_rule: str | None = None,
    auxiliary: tuple[Tensor, Tensor] | str | Path | None = None,
    image_size: int | tuple[int, int, int] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
    checkpoint: str | Path | None = None,
    checkpoint_seconds: float = 20.0,
    preview: str | Path | None = None,
    **options: Any,
) -> Leak:
    """Pictures whose gradient is the one received, by optimization: no certificate, only a loss.

    Args:
        model: the model the client trained, in the mode, train or eval, that the client trained it
            in.
        update: what the server received, of all layers.
        method: a matcher from `unsum list`.
        labels: (B,) class numbers or (B, C) probabilities if the attacker knows them.
        batch_size: B if the attacker knows it; taken from the update where the protocol discloses
            it.
        label_rule: a rule from `unsum list`, instead of the one that the method declares.
        auxiliary: labeled samples of the attacker's own, for the methods and label rules that need
            them: (images, labels), or a .npz, .safetensors or .pt file with both under these names.
        image_size: the side of the pictures, or (channels, height, width); by default the model's
            `image_size`, or the only usual side that the model takes.
        progress: told the step, the loss and the gradients' distance now and then.
        checkpoint: a .safetensors file for the state of the run, written every
            `checkpoint_seconds`; a run that finds one of its own there goes on from it.
        preview: a .png file for the pictures so far, written every other second.
        options: the method's own, as in `match(model, update, "ig", steps=2000, restarts=4)`.

    Returns:
        A `Leak` with `.images` in [0, 1]; `residual` is ‖∇(x) − ĝ‖ / ‖ĝ‖ for them, and
        `predicted_error` is infinite.
    """
    start = time.perf_counter()
    chosen = MATCHERS[method]
    chosen.check_options(options)
    for what, path, suffix in (
        ("checkpoint", checkpoint, ".safetensors"),
        ("preview", preview, ".png"),
    ):
        if path is not None and Path(path).suffix != suffix:
            raise UnsumError(
                f"A {what} is a {suffix} file; rename {Path(path).name!r} accordingly."
            )
    if device is not None and torch.device(device).type != next(model.parameters()).device.type:
        raise UnsumError(
            f"The model is on {next(model.parameters()).device}, not {device}; move it there first."
        )
    owned = read_auxiliary(auxiliary) if isinstance(auxiliary, str | Path) else auxiliary
    disclosed = update.batch_size if labels is None and batch_size is None else batch_size
    knowledge = Knowledge(labels=labels, batch_size=disclosed, auxiliary=owned)
    chosen.needs.check(method, update, knowledge.known_batch_size, auxiliary=owned is not None)
    shape = picture_shape(model, image_size)
    if disclosed is not None and labels is None and batch_size is None:
        check_pictures(disclosed, shape)
    separator = options.get("separator", chosen.needs.separator)
    targets, separated, notes = _targets(
        model, update, chosen, knowledge, label_rule, separator, seed
    )
    B = (
        len(targets)
        if targets is not None
        else needed(knowledge.known_batch_size, "The batch size")
    )
    problem = replace(
        pose(
            method, model, update, batch_size=B, shape=shape, targets=targets, separated=separated
        ),
        auxiliary=knowledge.auxiliary,
        seed=seed,
        progress=progress,
        checkpoint=None if checkpoint is None else Path(checkpoint),
        checkpoint_seconds=checkpoint_seconds,
        preview=None if preview is None else Path(preview),
    )
    matched = chosen(problem, **options)
    return _leak(problem, matched, knowledge, notes, time.perf_counter() - start)


def read_auxiliary(path: str | Path) -> tuple[Tensor, Tensor]:
    """((N, c, h, w) in [0, 1], (N,) class numbers) from arrays `images`, whole numbers up to 255 or
    fractions, and `labels`."""
    tensors = read_tensors(
        Path(path), "auxiliary data", (".safetensors", ".npz", ".pt", ".pth")
    ).tensors
    if "images" not in tensors or "labels" not in tensors:
        raise UnsumError(
            f"{Path(path).name!r} must hold arrays called images and labels, not "
            f"{', '.join(tensors)}."
        )
    images = tensors["images"]
    return images.float() / (1 if images.is_floating_point() else 255), tensors["labels"].long()


def _targets(
    model: nn.Module,
    update: Update,
    chosen: Matcher,
    knowledge: Knowledge,
    label_rule: str | None,
    separator: str,
    seed: int,
) -> tuple[Tensor | None, Leak | None, list[str]]:
    """((B, C) targets or None, the separator's leak where one ran, notes)."""
    B, classes = knowledge.known_batch_size, find_head(model)[1].out_features
    granted = knowledge.targets(classes)
    if separator:
        labels, B = knowledge.labels, knowledge.batch_size
        leak = answered(model, update, separator, labels=labels, batch_size=B, seed=seed)
        # that one finds a sample or says that it did not, and predicts no error
        predicts = separator != "soft"
        if leak.predicted_error == math.inf or (predicts and math.isnan(leak.predicted_error)):
            raise UnsumError(f"{chosen.name!r} separates first, and that failed: {leak.notes[0]}")
        return (
            leak.targets,
            leak,
            [f"Labels and features were found by the separator {leak.method!r}.", *leak.notes],
        )
    if granted is not None:
        return granted, None, []
    name = label_rule or chosen.needs.rule
    if not name:
        return None, None, ["Labels were optimized along with the pictures."]
    evidence = Clues.of(
        model, update, Knowledge(batch_size=B, auxiliary=knowledge.auxiliary), seed=seed
    )
    rule = LABEL_RULES[name]
    found = rule(evidence)
    remarks = rule.needs.remarks(name, evidence)
    rows = torch.nn.functional.one_hot(found.long(), classes).double()
    return rows, None, [f"Labels were found by the rule {name!r}.", *remarks]


def _leak(
    problem: Problem, matched: Matched, knowledge: Knowledge, notes: list[str], seconds: float
) -> Leak:
    features, logits, residual = _explained(problem, matched)
    knowledge = replace(knowledge, auxiliary_photos=matched.photos)
    tail = (
        ""
        if len(matched.restart_losses) == 1
        else f", the lowest of {len(matched.restart_losses)} restarts"
    )
    notes = [
        *notes,
        *matched.notes,
        f"Pictures by gradient matching ({problem.method}) carry no certificate: after "
        f"{matched.steps} steps the distance of gradients is {matched.match:.2g} and the whole "
        f"loss {matched.loss:.2g}{tail}.",
    ]
    found = problem.separated  # its features and their certificate stand; only pictures are new
    if found is None:
        rows = (matched.targets.double(), logits.double(), features.double())
        found = Leak(
            "", *rows, residual, math.inf, exact=False, knowledge=knowledge, pictures_first=True
        )
    return replace(
        found,
        method=problem.method,
        images=matched.images.float(),
        seconds=seconds,
        notes=notes,
        history={name: values.float() for name, values in matched.history.items()},
    )


def _explained(problem: Problem, matched: Matched) -> tuple[Tensor, Tensor, float]:
    """Features and logits of the pictures, and how much of the gradient they leave unexplained."""
    parameters = {name: p for name, p in problem.model.named_parameters() if name in problem.sent}
    head = needed(problem.head, "A linear head")
    with quiet(problem.model, parameters), torch.enable_grad():
        features, logits = with_features(problem.model, head, matched.images)
        loss = nn.functional.cross_entropy(logits, matched.targets, reduction=problem.reduction)
        found = torch.autograd.grad(loss, list(parameters.values()))
    sent = [problem.sent[name] for name in parameters]
    apart = norm([a - b for a, b in zip(found, sent, strict=True)])
    return features.detach(), logits.detach(), float(apart / norm(sent).clamp_min(1e-30))
