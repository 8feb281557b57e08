"""The walk down a chain: the head first, then every layer that can be undone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.peel.chain import Chain, find_chain
from unsum.peel.method import PEELERS, TRUSTED_ERROR, Peeled
from unsum.peel.mlp import front_at_head, peel_dense
from unsum.update import Update


@PEELERS.register("layers", summary="exact inputs of a whole batch", needs="all gradients")
def layers(
    model: nn.Module, update: Update, leak: Leak | None, *, shape: tuple[int, ...] | None, seed: int
) -> Peeled:
    chain = find_chain(model, update, leak.features.device)
    front = front_at_head(leak, chain.steps[-1], update.reduction, seed)
    done, notes = [], []
    inputs=[front.x]
    for step, above in zip(chain.steps[-2::-1], chain.steps[:0:-1]):
        front, layer, remarks = peel_dense(front, above, step, seed)
        done.append(layer); notes += remarks; inputs.append(front.x)
    if float(front.errors.max())>1e-3 or not leak.exact:
        import time; t=time.time()
        from unsum.peel.refine import refine
        r=refine(chain.steps, front.x, front.errors, leak, update.reduction, seed)
        print("   refined", r.residual, r.rounds, r.gain, float(r.errors.max()), time.time()-t)
        return Peeled("layers", r.X, r.errors, r.errors<TRUSTED_ERROR, chain.complete, done, notes)
    return Peeled("layers", front.x, front.errors, front.errors<TRUSTED_ERROR, chain.complete, done, notes)
