"""What a vision transformer does before its first attention, found by trying: nothing is known by
its name.

The first layer reads patches that do not overlap: u_p = E x_p + e. Fixed vectors are added
(positions) and put beside them (class, register and distillation tokens), perhaps with a norm on
the way; a norm and the first attention's linear maps follow. Each step is a function of one token,
so passes with other values in the place of u tell what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unsum.errors import UnsumError
from unsum.gradients import in_eval_mode
from unsum.match.problem import picture_shape
from unsum.network.layers import departure
from unsum.spans.tokens.block import Call, FirstBlock, read_block

_SAME = 1e-4  # relative difference within which two float32 passes agree


class _EnoughError(Exception):
    """Ends a pass: what comes after is not needed."""


@dataclass(frozen=True)
class PixelLayout:
    """Which entry of which patch is which pixel: rows.flatten() = scale · picture.flatten()[pixels]
    + shift."""

    shape: tuple[int, ...]  # of a picture
    pixels: Tensor  # (N · n,)
    scale: Tensor
    shift: Tensor

    def pictures(self, rows: Tensor) -> Tensor:
        """(B, c, h, w) of patches (B, N, n)."""
        flat = (rows.flatten(1) - self.shift.to(rows)) / self.scale.to(rows)
        found = torch.zeros_like(flat).index_copy(1, self.pixels.to(rows.device), flat)
        return found.view(-1, *self.shape)

    def rows(self, pictures: Tensor) -> Tensor:
        """(B, N · n) of pictures (B, c, h, w)."""
        flat: Tensor = pictures.flatten(1)[:, self.pixels.to(pictures.device)]
        return flat * self.scale.to(flat) + self.shift.to(flat)


@dataclass(frozen=True)
class FirstNorms:
    """From u (N, d) to what the first attention reads: norm(w), with w = u + offset, or w = inner(u
    + offset) + after.

    `offset` and `after` are (N, d). `readers` are the weights, by the parameters' names, that
    multiply norm(w).
    """

    norm: nn.LayerNorm
    inner: nn.LayerNorm | None
    offset: Tensor
    after: Tensor
    readers: tuple[str, ...]


@dataclass(frozen=True)
class PatchNetwork:
    """The layer `name` that reads N patches of n numbers, as (d, n) `weight` and bias, among T
    tokens."""

    name: str
    weight: Tensor
    bias: Tensor | None
    layout: PixelLayout
    count: int  # N
    tokens: int  # T
    # the parameter whose gradient is the sum over the batch of ∂loss/∂u, token by token
    positions: str | None
    rows: Tensor  # (N,) which of its rows belong to the patches
    first: FirstNorms | None
    # (T − N, d) the tokens that are no patches, as the first block's norm reads them
    beside: Tensor
    block: FirstBlock | None

    @property
    def width(self) -> int:
        return int(self.weight.shape[0])


def find_patches(model: nn.Module) -> PatchNetwork:
    """The network's beginning; an `UnsumError` where it is not that of a vision transformer."""
    name, layer = _patch_layer(model)
    shape = picture_shape(model, None)
    with in_eval_mode(model), torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        calls = _calls(
            model, torch.rand(1, *shape, generator=generator).to(next(model.parameters()))
        )
        if not calls or calls[0].module is not layer:
            raise _no_transformer("the layer that cuts patches is not the first one")
        changed = next(
            (f"{call.name!r} {why}" for call in calls if (why := departure(call.module))), None
        )
        if changed:
            raise _no_transformer(changed)
        layout = _layout(model, layer, shape)
        attention = _first_attention(calls, layer)
        u = calls[0].written
        N = u[0].numel() // _width(layer)
        norm_call = _last_norm(calls, attention)
        probe = _Probe(model, layer, u, norm_call.module)
        T = (
            norm_call.read.shape[-2]
            if norm_call.read.ndim == 3
            else norm_call.read[0].numel() // _width(layer)
        )
        norms = _norms(probe, calls, attention, norm_call, N)
        block = read_block(calls, attention, norm_call)
    positions, rows = _positions(model, probe, N, T)
    weight = layer.weight.detach().flatten(1)
    beside = norm_call.read.reshape(-1, _width(layer))[: T - N]
    return PatchNetwork(
        name, weight, layer.bias, layout, N, T, positions, rows, norms, beside, block
    )


def is_patched(model: nn.Module) -> bool:
    """Whether the model begins as a vision transformer does, as far as can be seen without a
    pass."""
    attentions = (nn.MultiheadAttention, nn.LayerNorm)
    if not any(isinstance(module, attentions) for module in model.modules()):
        return False
    try:
        return isinstance(_patch_layer(model)[1], nn.Conv2d)
    except UnsumError:
        return False


def _no_transformer(why: str) -> UnsumError:
    return UnsumError(
        f"'tokens' reads vision transformers, and this model is none it knows: {why}; use 'exact'."
    )


def _patch_layer(model: nn.Module) -> tuple[str, nn.Conv2d | nn.Linear]:
    """The first convolution, of patches that touch and do not overlap; or the first dense layer,
    where there is none."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if (
                module.kernel_size != module.stride
                or set(module.padding) != {0}
                or module.groups != 1
            ):
                raise _no_transformer(
                    f"the first convolution, {name!r}, reads patches that overlap"
                )
            return name, module
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            return name, module
    raise _no_transformer("it has no layer that reads patches")


def _width(layer: nn.Conv2d | nn.Linear) -> int:
    return layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features


@contextmanager
def _hooked(hooks: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for module, hook in hooks.items():
            stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield


def _calls(model: nn.Module, images: Tensor) -> list[Call]:
    """Layers, norms and attentions in the order in which they are called, down to the first
    attention's own layers."""
    names = {module: name for name, module in model.named_modules()}
    kinds = (nn.Conv2d, nn.Linear, nn.LayerNorm, nn.MultiheadAttention)
    calls: list[Call] = []

    def note(
        module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any
    ) -> None:
        read = inputs[0] if inputs else next(iter(named.values()))
        owner = model.get_submodule(names[module].rpartition(".")[0])
        calls.append(Call(names[module], module, read, output, owner))

    watched: dict[nn.Module, Callable[..., Any]] = {
        module: note for module in model.modules() if isinstance(module, kinds)
    }
    try:
        with _hooked(watched):
            model(images)
    except (RuntimeError, ValueError) as error:
        raise _no_transformer(f"it does not take a picture of {tuple(images.shape[1:])}") from error
    return calls


def _first_attention(calls: list[Call], layer: nn.Module) -> int:
    """The first call after the patches of an attention, or of a linear map of tokens; a norm must
    have come before it."""
    normed = False
    for number, call in enumerate(calls[1:], start=1):
        if isinstance(call.module, nn.Conv2d):
            break
        normed = normed or isinstance(call.module, nn.LayerNorm)
        if isinstance(call.module, nn.Linear | nn.MultiheadAttention) and call.module is not layer:
            if not normed or call.read.shape[-1] != _width(layer):  # type: ignore[arg-type]
                break
            return number
    raise _no_transformer("no attention over normed tokens follows its patches")


def _last_norm(calls: list[Call], attention: int) -> Call:
    return next(
        call for call in reversed(calls[:attention]) if isinstance(call.module, nn.LayerNorm)
    )


class _Probe:
    """Passes with chosen values in the place of what the patch layer writes, up to the norm before
    the first attention."""

    def __init__(
        self, model: nn.Module, layer: nn.Conv2d | nn.Linear, like: Tensor, norm: nn.Module
    ) -> None:
        self.model, self.layer, self.like, self.norm = model, layer, like, norm
        self.is_map = isinstance(layer, nn.Conv2d)
        self.images = torch.zeros(1, *picture_shape(model, None)).to(like)

    def __call__(self, u: Tensor, *norms: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """What each of `norms` (the last one by default) read and wrote, for u (N, d)."""
        shaped = u.T.reshape(self.like.shape) if self.is_map else u.reshape(self.like.shape)
        seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        wanted = norms or (self.norm,)

        def keep(
            module: nn.Module, inputs: tuple[Any, ...], _named: dict[str, Any], output: Any
        ) -> None:
            seen.setdefault(module, (inputs[0], output))
            if module is self.norm:
                raise _EnoughError

        def put(*_: Any) -> Tensor:
            return shaped

        try:
            with _hooked({self.layer: put, **dict.fromkeys((*wanted, self.norm), keep)}):
                self.model(self.images)
        except _EnoughError:
            pass
        return [seen[norm] for norm in wanted]


def _norms(
    probe: _Probe, calls: list[Call], attention: int, last: Call, N: int
) -> FirstNorms | None:
    """None where what happens between the patches and the first attention is not known here."""
    norm = last.module
    between = [
        call
        for call in calls[1:attention]
        if isinstance(call.module, nn.LayerNorm) and call.module is not norm
    ]
    readers = _readers(calls, attention, last)
    assert isinstance(norm, nn.LayerNorm)
    d = norm.normalized_shape[-1]
    if not readers or len(between) > 1 or norm.weight is None:
        return None
    chain = [between[0].module, norm] if between else [norm]
    generator = torch.Generator().manual_seed(0)
    at_zero, at_random = (
        probe(u.to(probe.like), *chain)
        for u in (torch.zeros(N, d), torch.randn(N, d, generator=generator))
    )
    u = torch.randn(N, d, generator=torch.Generator().manual_seed(0)).to(probe.like)
    offset = _patch_rows(at_random[0][0], N, d) - u
    if not _close(offset, _patch_rows(at_zero[0][0], N, d)):
        return None
    after = torch.zeros_like(offset)
    if len(chain) > 1:
        after = _patch_rows(at_random[1][0], N, d) - _patch_rows(at_random[0][1], N, d)
        if not _close(after, _patch_rows(at_zero[1][0], N, d) - _patch_rows(at_zero[0][1], N, d)):
            return None
    inner = chain[0] if len(chain) > 1 and isinstance(chain[0], nn.LayerNorm) else None
    return FirstNorms(norm, inner, offset, after, readers)


def _patch_rows(tokens: Tensor, N: int, d: int) -> Tensor:
    """(N, d) the last tokens: others stand before the patches."""
    return tokens.reshape(-1, d)[-N:]


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= _SAME * float(one.norm() + 1)


def _readers(calls: list[Call], attention: int, last: Call) -> tuple[str, ...]:
    """Parameters that multiply what the norm wrote."""
    first = calls[attention].module
    if isinstance(first, nn.MultiheadAttention):
        parts = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
        return tuple(
            f"{calls[attention].name}.{part}" for part in parts if getattr(first, part) is not None
        )
    return tuple(
        f"{call.name}.weight"
        for call in calls[attention:]
        if isinstance(call.module, nn.Linear) and call.read is last.written
    )


def _layout(model: nn.Module, layer: nn.Conv2d | nn.Linear, shape: tuple[int, ...]) -> PixelLayout:
    """By three pictures: zeros, ones, and every pixel's own number; in float64, which tells them
    apart."""
    like = next(model.parameters())

    def read(images: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0].double())
            raise _EnoughError

        hook = layer.register_forward_pre_hook(keep)
        try:
            model(images)
        except (_EnoughError, RuntimeError):
            pass
        finally:
            hook.remove()
        if not seen:
            raise _no_transformer("its pictures do not reach the first layer as they are")
        if isinstance(layer, nn.Conv2d):
            return F.unfold(seen[0], layer.kernel_size, stride=layer.stride)[0].T.flatten()
        return seen[0].flatten()

    size = torch.Size(shape).numel()
    shift = read(torch.zeros(1, *shape).to(like))
    scale = read(torch.ones(1, *shape).to(like)) - shift
    pixels = torch.zeros_like(shift)
    digits = 256  # numbers that float32 keeps through a normalization
    for power in range(3):
        values = (torch.arange(size) // digits**power % digits).to(like) / digits
        pixels += ((read(values.view(1, *shape)) - shift) / scale * digits).round() * digits**power
    known = bool(pixels.isfinite().all()) and len(pixels) == size
    if not known or not torch.equal(
        pixels.long().sort().values, torch.arange(size, device=pixels.device)
    ):
        raise _no_transformer("its first layer does not read every pixel once")
    return PixelLayout(tuple(shape), pixels.long(), scale, shift)


def _positions(model: nn.Module, probe: _Probe, N: int, T: int) -> tuple[str | None, Tensor]:
    """A parameter that is added to the patches: its gradient is ∂loss/∂u, whatever follows."""
    d = _width(probe.layer)
    counts = range(N, T + 1)  # the class token may have a row, and registers none
    sought = {
        name: p
        for name, p in model.named_parameters()
        if p.shape[-1] == d and p.numel() / d in counts
    }
    rows = torch.arange(T - N, T)
    if not sought:
        return None, rows
    flags = {p: p.requires_grad for p in sought.values()}
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(N, d, generator=generator).to(probe.like).requires_grad_()
    try:
        with in_eval_mode(model), torch.enable_grad():
            for p in flags:
                p.requires_grad_()
            read = probe(u)[0][0]
            weights = torch.randn(read.shape, generator=generator).to(read)
            found = torch.autograd.grad(read, [u, *sought.values()], weights, allow_unused=True)
    finally:
        for p, flag in flags.items():
            p.requires_grad_(flag)
    for name, gradient in zip(sought, found[1:], strict=True):
        if gradient is None:
            continue
        mine = gradient.reshape(-1, d)
        if _close(mine[-N:], found[0]):
            return name, torch.arange(len(mine) - N, len(mine))
    return None, rows
