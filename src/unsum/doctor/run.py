"""All checks in order; what cannot be checked because something before it failed is left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from unsum.audit.inputs import USUAL_BATCH, Data, Inputs, own_model
from unsum.data import Batch, embedded_batch, photo_count, tags
from unsum.doctor import batch as data_checks
from unsum.doctor import gradient, machine, network
from unsum.doctor.finding import Finding, ok, warning, will_not_work
from unsum.doctor.tampering import tampering
from unsum.errors import UnsumError
from unsum.files.tensor_file import read_tensors
from unsum.models import DEFAULT_MODEL
from unsum.models.load import LoadedModel
from unsum.models.received import Received
from unsum.update import Update

_WEIGHTS = (".safetensors", ".pt", ".pth", ".npz")


def doctor(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | None = None,
    *,
    update: Update | Received | str | Path | None = None,
    weights: str | Path | None = None,
    classes: int | None = None,
    inverse: str | Path | None = None,
    batch: int | None = None,
    same_label: int = 0,
    train: bool = True,
    download: bool = False,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> list[Finding]:
    """Will an audit of this model, these data or this update work? Nothing is attacked.

    Also says, for clients, whether the model looks as if its server had prepared it to leak (`tampered`); for that a file of
    weights will do in the place of a model. Arguments are those of `unsum.audit`. Each `Finding` has a mark, `ok`, `warning`,
    `will not work` or `tampered`, and a sentence.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> {finding.mark for finding in unsum.doctor(model, data)} <= {"ok", "warning"}
        True
    """
    alone = _weights_alone(model)
    if alone is not None and data is None and update is None:
        return _of_weights(alone)
    try:
        loaded, held, sent = _load(Inputs(model, data, update, weights, classes, download, batch, same_label, seed))
    except UnsumError as error:
        return [will_not_work("loading", str(error))]
    module = loaded.model
    size = loaded.image_size if data is None or held is None else int(held.images.shape[-1])
    findings = [_loaded(loaded, sent), *tampering(module), network.head(module)]
    if findings[-1].mark == "will not work":
        return findings
    findings += [
        network.trainable_head(module),
        network.bias(module),
        network.features(module, size),
        network.batch_norm(module, train),
        network.dropout(module, train),
        network.precision(module),
        network.finite_weights(module),
        network.inverse(module, None if inverse is None else str(inverse)),
    ]
    samples = _samples(held, batch)
    if samples is not None:
        findings += [
            data_checks.size_against_classes(module, samples),
            data_checks.size_against_features(module, samples),
        ]
    if held is not None:
        findings += [data_checks.labels(module, held), data_checks.variety(held)]
    if sent is not None:
        findings += _of_update(module, sent)
    return [*findings, machine.memory(module, torch.device(device))]


def _load(given: Inputs) -> tuple[LoadedModel, Batch | None, Update | None]:
    """Whatever there is; with neither data nor an update, the embedded photos where the model takes them."""
    if given.update is not None and given.data is not None:
        raise UnsumError("Look at data or at an update, one at a time.")
    if given.update is not None:
        loaded, sent = given.captured()
        return loaded, None, sent
    if given.data is not None:
        loaded, held = given.simulated()
        return loaded, held, None
    if not isinstance(given.model, str):
        return own_model(given.model), None, None
    loaded = given.named_model(given.model, given.classes or len(tags()))
    count = min(given.batch or USUAL_BATCH, photo_count())
    return loaded, embedded_batch(count, image_size=loaded.image_size, same_label=given.same_label), None


def _weights_alone(model: nn.Module | str) -> Path | None:
    """The file, where a file of weights was given in the place of a model."""
    return Path(model) if isinstance(model, str) and Path(model).suffix.lower() in _WEIGHTS else None


def _of_weights(path: Path) -> list[Finding]:
    try:
        tensors = read_tensors(path, "weights").tensors
    except UnsumError as error:
        return [will_not_work("loading", str(error))]
    broken = next((n for n, t in tensors.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())), None)
    findings = [ok("loading", f"{path.name}: {len(tensors)} tensors without a model, so only they were looked at.")]
    if broken is not None:
        findings.append(warning("weights", f"The weights {broken!r} hold NaN or Inf."))
    return findings + tampering(tensors)


def _samples(held: Batch | None, batch: int | None) -> int | None:
    if batch is not None:
        return batch
    return None if held is None else len(held.images)


def _loaded(loaded: LoadedModel, sent: Update | None) -> Finding:
    name = loaded.name
    if sent is not None and loaded.random:
        return warning(
            "loading", f"{name}: an update can only be read with the very weights it was computed with; give --weights."
        )
    return ok("loading", f"{name}.")


def _of_update(module: nn.Module, sent: Update) -> list[Finding]:
    findings = [gradient.names(module, sent)]
    if findings[0].mark == "will not work":
        return findings
    findings.append(gradient.head_gradient(module, sent))
    checks: list[Callable[[], Finding]] = [
        lambda: gradient.zeros(sent),
        lambda: gradient.levels(module, sent),
        lambda: gradient.transport(sent),
        lambda: gradient.scale(sent),
    ]
    if findings[1].mark != "will not work":
        checks.append(lambda: gradient.rank(module, sent))
    return findings + [check() for check in checks]
