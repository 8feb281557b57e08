"""What all commands have in common: the panels of their help, and the former names of options,
hidden for one release."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from unsum.commands.stages import say

# A panel of the help, and the parameters in it, in the order in which they are shown.
PANELS = {
    "Model": "model weights classes classes_from fresh_head image_size download",
    "Data": "data target columns batch same_label",
    "Captured update": "update before after delta previous updates processes ray flower_run",
    "Client": (
        "learning_rate steps epochs momentum weight_decay loss eval_mode buffers defense sweep "
        "keep_under utility_data no_utility"
    ),
    "Attacker": "attack label_rule inverse refine server batch_size_known time_limit",
    "Gate": "fail_above prove_below fail_on_labels ceiling junit sarif",
    "Output": "out force as_json compare device seed",
}
_PLACES = {name: place for place, name in enumerate(" ".join(PANELS.values()).split())}

# Former name → name. An option of another meaning may have the former name in another command.
FORMER = {
    "audit": {"--steps": "--local-steps", "--text": "--data"},
    "attack": {"--steps": "--local-steps", "--batch-size": "--batch"},
    "capture": {"--text": "--data"},
    "doctor": {"--steps": "--local-steps", "--text": "--data"},
    "train-inverse": {"--size": "--image-size", "--rate": "--lr"},
}


def panel(name: str) -> str | None:
    """The panel that a parameter is shown in."""
    return next((title for title, names in PANELS.items() if name in names.split()), None)


def place(name: str) -> int:
    """Where a parameter stands among all of the panels; what is in none comes last."""
    return _PLACES.get(name, len(_PLACES))


class Command(TyperCommand):
    """A command that knows the former names of its options."""

    # Any: of Click, or of Typer's own copy of it
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [_renamed(word, FORMER.get(self.name or "", {})) for word in args]
        )

    def get_help_option(self, ctx: Any) -> Any:
        """In the panel of the output, where there are panels: alone it would be the first of
        them."""
        option = super().get_help_option(ctx)
        if option is not None and any(
            getattr(param, "rich_help_panel", None) for param in self.params
        ):
            option.rich_help_panel = "Output"
        return option


def _renamed(word: str, former: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    if name not in former:
        return word
    say(
        f"{name} is called {former[name]} now; the former name goes with the next release.",
        "yellow",
    )
    return former[name] + equals + value
