"""A second layer that sends a direction less than there are samples: the samples themselves tell
which."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import unsum
from support.dense import partners
from support.lenet import CLASSES, crops
from unsum.knowledge import Knowledge
from unsum.network.chain import find_chain
from unsum.spans.missing import with_missing
from unsum.spans.pair import choose_pair


def client() -> tuple[nn.Sequential, Tensor, Tensor]:
    """The tutorials' network, as initialized; with this seed ∇W of its second dense layer has rank
    31 for 32 photos."""
    torch.manual_seed(18)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    x = crops() * 2 - 1
    return model, x, torch.arange(len(x)) % CLASSES


def test_samples_beside_a_span_tell_the_direction_it_lacks() -> None:
    model, x, y = client()
    update = unsum.capture(model, x, y)
    pair = choose_pair(find_chain(model, update), Knowledge(batch_size=len(x)))
    assert (len(pair.here), len(pair.next)) == (32, 31)
    with torch.no_grad():
        read = model[:7](x).double()
    before, whole = pair.condition, with_missing(pair, seed=0)
    assert whole.next.lacking
    # no sample lies in the span
    assert float(before.misfit(before.unknowns_of(read)).median()) > 1e-3
    assert float(whole.condition.misfit(whole.condition.unknowns_of(read)).max()) < 1e-4


def test_a_batch_with_a_direction_missing_is_read_whole() -> None:
    model, x, y = client()
    leak = unsum.separate(model, unsum.capture(model, x, y), "spans", batch_size=len(x))
    with torch.no_grad():
        which, errors = partners(leak, model[:7](x))
    assert sorted(which.tolist()) == list(range(len(x)))
    assert float(errors.max()) < 1e-2
    assert leak.labels[which].tolist() == y.tolist()
    assert leak.exact, leak.notes
