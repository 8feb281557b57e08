"""A whole attack: separate the batch, then peel its layers down to the input, or turn its features
into pictures; or match the whole gradient."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unsum.attack.agreement import agreeing
from unsum.attack.auto import auto
from unsum.attack.case import separate_by
from unsum.attack.counts import with_counts
from unsum.attack.occurred import with_occurred
from unsum.attack.options import AUTO, AttackOptions
from unsum.attack.peeling import peeled_or_refused
from unsum.attack.pictures import Inverses, walked_down, with_guess, with_pictures, with_pixels
from unsum.attack.reach import HOPELESS
from unsum.certify.claim import grant_each
from unsum.errors import UnsumError
from unsum.head import find_head
from unsum.invert import load_inverse
from unsum.invert.refine import Mode
from unsum.labels import LABEL_RULES
from unsum.leak import Attempt, Leak
from unsum.losses import Loss
from unsum.match import match
from unsum.models.language import is_language_model
from unsum.notes import Code, without
from unsum.peel import obstacle
from unsum.running.deadline import Deadline, out_of_time, trying
from unsum.running.deadline import time_limit as limited_to
from unsum.running.progress import SILENT, Progress
from unsum.running.sharing import sharing
from unsum.running.watching import watched
from unsum.update import Update

# relative difference up to which two answers tell one sample: what a certificate allows
_SAME_FEATURES = 1e-3
_SMALLEST_PICTURE = 11  # side of the window that structural similarity is measured in


def attack(
    model: nn.Module,
    update: Update,
    method: str = AUTO,
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    label_rule: str | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    public: Tensor | None = None,
    inverse: Inverses = None,
    refine: Mode | None = None,
    loss: str | Loss | None = None,
    time_limit: float | None = None,
    options: Mapping[str, Any] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    progress: Progress = SILENT,
) -> Leak:
    """Everything that can be read out of one update: a `Leak`, with `.images` where layers peel,
    the model has an inverse, or the method matches gradients.

    The head's gradient is ∇W = α (P − Y)ᵀ F. Of a batch of B the leak has `.labels` (B,), `.logits`
    (B, C), `.features` F (B, H) and `.images` (B, c, h, w).

    Args:
        method: `auto` chooses by the list that `unsum list` prints, and then peels the layers down
            to the exact inputs where every layer can be undone; any other name is a separator or a
            gradient-matching method from `unsum list`, the latter with options as in
            `ig:steps=2000,restarts=4`. What a separator found goes to the inverse. A language
            model's text is read by `text`, into `leak.tokens`.
        labels, batch_size: what the attacker knows besides, as in `separate`.
        label_rule: a rule from `unsum list` that finds the labels first, instead of the method's
            own way.
        auxiliary: labeled samples of the attacker's own, for label rules that need them.
        public: inputs that anyone could have, without labels, and none of them the client's: what
            features look like under noise.
        inverse: a trained inverse for this model's backbone, or several; the embedded one by
            default. One for an inner layer is used where the layers above can be peeled, the next
            one otherwise.
        refine: change the inverse's pictures until they explain the leak: `features`, which raises
            PSNR, or a published mode (`f`, `g`, `gf`). The model must be in the mode, train or
            eval, that the client trained it in.
        loss: what the client minimized, as in `separate`; for `auto` and `exact`.
        time_limit: seconds after which the search gives the best answer so far, as in `separate`;
            60 by default.
        options: of a gradient-matching method, as `unsum.match.match` takes them: `{"image_size":
            32, "steps": 2000}`.
        progress: an `unsum.running.progress.Progress`, told the stages and the steps of methods
            that iterate.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Flatten(),
        ...     torch.nn.Linear(432, 64),
        ...     torch.nn.ReLU(),
        ...     torch.nn.Linear(64, 20),
        ... )
        >>> images, labels = torch.rand(3, 3, 12, 12), torch.tensor([4, 4, 1])
        >>> leak = unsum.attack(model, unsum.capture(model, images, labels))
        >>> sorted(leak.labels.tolist()), leak.images.shape, leak.exact
        ([1, 4, 4], torch.Size([3, 3, 12, 12]), True)
        >>> unsum.score(leak, images=images)["psnr"]
        100.0
    """
    wanted = AttackOptions(
        method,
        labels,
        batch_size,
        label_rule=label_rule,
        auxiliary=auxiliary,
        public=public,
        inverse=inverse,
        refine=refine,
        loss=loss,
        time_limit=time_limit,
        matching=options or {},
        device=device,
        seed=seed,
    )
    return run_attack(model, update, wanted, progress)


def run_attack(
    model: nn.Module, update: Update, options: AttackOptions, progress: Progress = SILENT
) -> Leak:
    """`attack`, for callers that relay options."""
    options.check()
    limit: dict[str, Any] = {"default": options.default_limit}
    with (
        watched(progress) as heard,
        limited_to(options.time_limit, heard, **limit) as deadline,
        sharing(),
    ):
        leak = _run(model, update, options, heard)
    return cut_short(leak, deadline)


def finished(model: nn.Module, update: Update, leak: Leak, options: AttackOptions) -> Leak:
    """What a separator found, with all that comes after it."""
    with limited_to(options.time_limit, default=options.default_limit) as deadline, sharing():
        start, before = time.perf_counter(), leak.seconds
        leak = with_occurred(model, update, _with_inputs(model, update, leak, options, SILENT))
        leak = replace(leak, seconds=before + time.perf_counter() - start)
    return cut_short(leak, deadline)


def cut_short(leak: Leak, deadline: Deadline) -> Leak:
    """The leak as it is where its search came to its end under this limit.

    A certificate of the batch stays: a separator that was cut short gives none itself, so what was
    cut came after it.
    """
    leak = leak.published()
    if not deadline.cut:
        return leak
    sure = [attempt.leak is not None and attempt.leak.exact for attempt in leak.tried]
    tried = [
        one if ended else replace(one, blind=deadline.over)
        for one, ended in zip(leak.tried, sure, strict=True)
    ]
    notes = [deadline.sentence, *without(leak.notes, Code.CUT_SHORT)]
    if leak.inputs_exact is not None:  # peeling that was cut short vouches for nothing
        leak = replace(leak, inputs_exact=grant_each(leak.inputs_exact.double(), above=False))
    return replace(leak, tried=tried, notes=notes)


def _run(model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    start = time.perf_counter()
    if options.is_matcher:
        return _matched(model, update, options, progress)
    if options.label_rule is None:
        progress.say("Separating the batch")
        leak = auto(model, update, options, progress)
    else:
        leak = _with_rule(model, update, options, options.label_rule, progress)
    trying("")  # the attack that was tried last is over: parts below the head name themselves
    leak = agreeing(update, options, with_counts(model, update, leak, options))
    if leak.tokens is None and not is_language_model(model):  # of text there is nothing to draw
        leak = _with_inputs(model, update, leak, options, progress)
    leak = with_occurred(model, update, leak)
    return replace(leak, seconds=time.perf_counter() - start)


def _matched(model: nn.Module, update: Update, options: AttackOptions, progress: Progress) -> Leak:
    """Gradient matching: the whole gradient to pictures, with no inverse between; one that is given
    tells their size."""
    given: dict[str, Any] = {"auxiliary": options.auxiliary}
    if options.inverse is not None:
        first = options.inverse if isinstance(options.inverse, str | Path) else options.inverse[0]
        given["image_size"] = int(load_inverse(model, first).card["size"])
    progress.say("Matching gradients")
    return match(
        model,
        update,
        options.name,
        labels=options.labels,
        label_rule=options.label_rule,
        progress=progress,
        **(options.shared | given | dict(options.matching) | options.written),
    )


def _with_rule(
    model: nn.Module, update: Update, options: AttackOptions, name: str, progress: Progress
) -> Leak:
    """Labels by a rule, then the batch with those labels. What was found is not recorded as
    granted."""
    progress.say("Finding the labels")
    rule = LABEL_RULES[name]
    evidence = options.clues(model, update)
    found = rule(evidence)
    progress.say("Separating the batch")
    leak = auto(model, update, replace(options, labels=found, batch_size=None), progress)
    notes = [
        f"Labels were found by the rule {name!r}.",
        *rule.needs.remarks(name, evidence),
        *leak.notes,
    ]
    return replace(leak, knowledge=evidence.knowledge, notes=notes)


def _with_inputs(
    model: nn.Module, update: Update, leak: Leak, options: AttackOptions, progress: Progress
) -> Leak:
    """The leak with the inputs themselves where layers peel, else with pictures where there is an
    inverse."""
    if leak.inputs is not None and options.inverse is None:
        return replace(leak, images=leak.inputs.float() if _are_pictures(leak.inputs) else None)
    if options.method == AUTO and options.inverse is None:
        leak = _peeled(model, update, leak, options.seed, progress)
        if leak.inputs is not None and (leak.images is not None or leak.inputs.ndim == 2):
            return leak
    if options.method == AUTO and leak.predicted_error < HOPELESS:
        leak = _with_maps(model, update, leak, options, progress)
        leak = walked_down(model, update, leak, options.seed, progress)
    if not options.pictures:
        return leak
    if options.inverse is None:
        leak = replace(with_pixels(model, update, leak, options.seed, progress), hint=None)
        if leak.images is not None:
            return leak
    leak = with_pictures(model, update, leak, options.inverse, options.refine, progress)
    return with_guess(model, leak, options.seed, progress)


def _with_maps(
    model: nn.Module, update: Update, leak: Leak, options: AttackOptions, progress: Progress
) -> Leak:
    """The spans' answer to what the head told: of a network that pools, it holds every sample's map
    besides."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    # a number a channel
    pooled = convolutions and convolutions[-1].out_channels == find_head(model)[1].in_features
    told = leak.exact and not leak.inner and leak.inputs is None and leak.loss == "cross-entropy"
    if not told or not pooled or out_of_time("maps"):
        return leak
    progress.say("Reading the maps below the pooling")
    try:
        known = replace(options, batch_size=None if options.labels is not None else leak.batch_size)
        found = separate_by("spans", model, update, known, progress)
    except UnsumError:  # no two convolutions whose gradients hold the batch
        return leak
    attempt = Attempt(
        "spans",
        found,
        at_head=False,
        blind="" if found.exact else "maps that it did not tell apart",
    )
    tried = [*leak.tried, attempt]
    if found.batch_size != leak.batch_size:
        return replace(leak, tried=tried)
    if not found.exact:
        return _with_maps_of(found, replace(leak, tried=tried))
    note = (
        "The last layer told every sample; two convolutions below it told their maps as well "
        "(spans)."
    )
    # The head told as many, and no more than it is certain of: who was told a number does not
    # determine it.
    return replace(
        found,
        knowledge=leak.knowledge,
        counted=leak.counted,
        tried=tried,
        notes=[note, *found.notes],
    )


def _with_maps_of(found: Leak, leak: Leak) -> Leak:
    """The head's answer with maps that nothing certifies, where their features are those that its
    certificate vouches for."""
    apart = torch.cdist(leak.features.double(), found.features.to(leak.features.device).double())
    nearest = apart.argmin(1)
    off = apart.amin(1) / leak.features.double().norm(dim=1)
    if len(set(nearest.tolist())) < len(nearest) or not bool((off < _SAME_FEATURES).all()):
        return leak
    inner = {name: maps[nearest.to(maps.device)] for name, maps in found.inner.items()}
    note = (
        "Two convolutions below the last layer told maps that fit its features to "
        f"{float(off.max()):.1g} (spans)."
    )
    return replace(
        leak, inner=inner, notes=[*leak.notes, note, "The maps are not certified.", *found.notes]
    )


def _peeled(model: nn.Module, update: Update, leak: Leak, seed: int, progress: Progress) -> Leak:
    """The leak with its inputs, where every layer can be undone, and a note that says why not
    otherwise."""
    if leak.predicted_error >= HOPELESS or leak.method != "exact" or leak.loss != "cross-entropy":
        return leak
    if out_of_time("layers below the last one"):
        return leak
    reason = obstacle(model, update)
    if reason is not None:
        return replace(
            leak, notes=[*leak.notes, f"The layers cannot be peeled down to the input: {reason}."]
        )
    progress.say("Peeling layer after layer")
    try:
        peeled = peeled_or_refused(model, update, leak, seed=seed)
    except UnsumError as error:
        return replace(leak, notes=[*leak.notes, f"The layers cannot be peeled: {error}"])
    notes = [*leak.notes, *peeled.notes]
    if not peeled.complete or float(peeled.errors.min()) >= HOPELESS:
        return replace(
            leak, notes=[*notes, "Peeling did not reach the inputs, so they stay unknown."]
        )
    count = int(peeled.exact.sum())
    notes.append(
        f"Inputs were peeled layer by layer: {count} of {leak.batch_size} certified exact."
    )
    images = peeled.inputs.float() if _are_pictures(peeled.inputs) else None
    return replace(
        leak, inputs=peeled.inputs, inputs_exact=peeled.exact, images=images, notes=notes
    )


def _are_pictures(inputs: Tensor) -> bool:
    """Gray or colored, and large enough for a score of pictures."""
    shape = inputs.shape[1:]
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= _SMALLEST_PICTURE
