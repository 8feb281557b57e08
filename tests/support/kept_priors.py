"""What the embedded network's features look like before an update is seen, computed once a process:
it takes half of an audit of that network, and every audit loads the network anew."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from importlib import import_module

import pytest
from torch import Tensor, nn

from unsum.audit.provenance import fingerprint
from unsum.head import Head
from unsum.labels.feature_prior import FeaturePrior
from unsum.models.small_resnet import SmallResNet


def keep_priors(patch: pytest.MonkeyPatch) -> None:
    """The same layers, weights, modes, public photos and seed give the same prior. Networks of the
    tests' own, and one whose passes a test watches, are asked anew."""
    module = import_module("unsum.labels.feature_prior")
    make: Callable[..., FeaturePrior | None] = module._feature_prior
    kept: dict[Hashable, FeaturePrior | None] = {}

    def prior(
        head: Head, model: nn.Module, public: Tensor | None, seed: int
    ) -> FeaturePrior | None:
        parts = list(model.modules())
        watched = any(part._forward_hooks or part._forward_pre_hooks for part in parts)
        if type(model) is not SmallResNet or public is None or watched:
            return make(head, model, public, seed)
        # of the head, what it reads alone has a part in it
        below = {f"backbone.{name}": t for name, t in model.backbone.state_dict().items()}
        key = (
            repr(model.backbone),
            fingerprint(below | {"public": public}),
            tuple(part.training for part in parts),
            (head.name, head.W.shape[1], head.W.dtype, seed),
        )
        if key not in kept:
            kept[key] = make(head, model, public, seed)
        return kept[key]

    patch.setattr(module, "_feature_prior", prior)
