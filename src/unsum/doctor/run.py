"""All checks in order; what cannot be checked because something before it failed is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from unsum.audit.groups import ClientSamples, Loading, grouped
from unsum.audit.inputs import Data, Inputs, own_model
from unsum.audit.pictures import is_picture
from unsum.audit.text import is_text, text_inputs
from unsum.data import Batch, photo_count
from unsum.data.table_file import is_table
from unsum.data.texts import TextData
from unsum.doctor import gradient, network
from unsum.doctor.finding import Finding, Said
from unsum.doctor.tampering import tampering
from unsum.errors import UnsumError
from unsum.files.tensor_file import read_tensors
from unsum.models import DEFAULT_MODEL
from unsum.models.built import looks_at_pictures
from unsum.models.load import LoadedModel
from unsum.models.received import Received
from unsum.spans.tokens import is_patched
from unsum.update import Update

_WEIGHTS = (".safetensors", ".pt", ".pth", ".npz")


@grouped
def doctor(
    model: nn.Module | str = DEFAULT_MODEL,
    data: Data | TextData | None = None,
    *,
    update: Update | Received | str | Path | None = None,
    loading: Loading = Loading(),
    samples: ClientSamples = ClientSamples(),
    inverse: str | Path | None = None,
    train: bool = True,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> list[Finding]:
    """Will an audit of this model, these data or this update work? Nothing is attacked.

    Also says, for clients, whether the model looks as if its server had prepared it to leak
    (`tampered`); for that a file of weights will do in the place of a model. Arguments are those of
    `unsum.audit`. Each `Finding` has a mark, `ok`, `warning`, `will not work` or `tampered`, and a
    sentence.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(64, 20)
        >>> data = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> {finding.mark for finding in unsum.doctor(model, data)} <= {"ok", "warning"}
        True
    """
    given = Inputs(model, data, update, loading, samples, seed=seed)
    # weights in the place of a model
    alone = isinstance(model, str) and Path(model).suffix.lower() in _WEIGHTS
    if alone and data is None and update is None:
        return _of_weights(Path(str(model)))
    if is_table(data):
        sentence = (
            "Tables have no checks before an audit; unsum audit --data FILE --target COLUMN says "
            "what does not fit."
        )
        return [Finding("warning", "loading", sentence)]
    if update is None and is_text(model):
        return _of_text(given, train)
    try:
        loaded, held, sent = _load(given)
    except UnsumError as error:
        return [Finding("will not work", "loading", str(error))]
    module = loaded.model
    size = loaded.image_size if data is None or held is None else int(held.images.shape[-1])
    read: Said = "ok", f"{loaded.name}."
    if sent is not None and loaded.random:
        needed = (
            "an update can only be read with the very weights it was computed with; give --weights."
        )
        read = "warning", f"{loaded.name}: {needed}"
    findings = [
        *_named({"loading": read}),
        *tampering(module),
        *_named({"head": network.head(module)}),
    ]
    if findings[-1].mark == "will not work":
        return findings
    pictures = looks_at_pictures(module) or (held is not None and is_picture(held.images[0]))
    said = {
        "training": network.trainable_head(module),
        "bias": network.bias(module),
        **({"features": network.features(module, size)} if pictures else {}),
        "BatchNorm": network.batch_norm(module, train),
        "dropout": network.dropout(module, train),
        "precision": network.precision(module),
        "weights": network.finite_weights(module),
    }
    if pictures or inverse is not None:
        said["inverse"] = network.inverse(module, None if inverse is None else str(inverse))
    count = samples.batch if samples.batch is not None or held is None else len(held.images)
    if count is not None:
        said["batch size"] = network.size_against_classes(module, count)
        said["feature width"] = network.size_against_features(module, count)
        if is_patched(module):
            said["tokens"] = network.tokens(module, count)
        elif pictures:
            said["depth"] = network.depth(module, count, size)
    if held is not None:
        what = "pictures" if pictures else "samples"
        said |= {"labels": network.labels(module, held), what: network.variety(held, what)}
    if sent is not None:
        said |= _of_update(module, sent)
    return findings + _named(said | {"memory": network.memory(module, torch.device(device))})


def _named(said: Mapping[str, Said]) -> list[Finding]:
    return [Finding(mark, name, sentence) for name, (mark, sentence) in said.items()]


def _load(given: Inputs) -> tuple[LoadedModel, Batch | None, Update | None]:
    """Whatever there is; with neither data nor an update, the embedded photos where the model takes
    them."""
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
    few = replace(given.samples, batch=min(given.samples.count, photo_count()))
    loaded, held = replace(given, samples=few).simulated()
    return loaded, held, None


def _of_text(given: Inputs, train: bool) -> list[Finding]:
    """A language model, and the client's text."""
    try:
        inputs = text_inputs(given)
    except UnsumError as error:
        return [Finding("will not work", "loading", str(error))]
    module = inputs.loaded.model
    return [
        Finding(
            "ok", "loading", f"{inputs.loaded.name}: a language model, so the audit reads text."
        ),
        *tampering(module),
        *_named(
            {
                "head": network.head(module),
                "training": network.trainable_head(module),
                "tokenizer": network.tokenizer(inputs.tokenizer),
                "positions": network.positions(inputs),
                "dropout": network.dropout(module, train, text=True),
                "precision": network.precision(module),
                "weights": network.finite_weights(module),
            }
        ),
    ]


def _of_weights(path: Path) -> list[Finding]:
    try:
        tensors = read_tensors(path, "weights").tensors
    except UnsumError as error:
        return [Finding("will not work", "loading", str(error))]
    broken = next(
        (
            n
            for n, t in tensors.items()
            if t.is_floating_point() and not bool(torch.isfinite(t).all())
        ),
        None,
    )
    said: dict[str, Said] = {
        "loading": (
            "ok",
            f"{path.name}: {len(tensors)} tensors without a model, so only they were looked at.",
        )
    }
    if broken is not None:
        said["weights"] = "warning", f"The weights {broken!r} hold NaN or Inf."
    return _named(said) + tampering(tensors)


def _of_update(module: nn.Module, sent: Update) -> dict[str, Said]:
    said = {"names": gradient.names(module, sent)}
    if said["names"][0] != "will not work":
        said["head's gradient"] = gradient.head_gradient(module, sent)
        said["zeros"] = gradient.zeros(sent)
        said["quantization"] = gradient.levels(module, sent)
        said["transport"] = gradient.transport(sent)
        said["scale"] = gradient.scale(sent)
        if said["head's gradient"][0] != "will not work":
            said["rank"] = gradient.rank(module, sent)
    return said
