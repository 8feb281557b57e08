"""A listener that remembers what it was told."""

from __future__ import annotations

from unsum.running.progress import Progress


class Heard(Progress):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.steps: list[tuple[float, ...]] = []
        self.parts: list[tuple[int, int]] = []

    def say(self, sentence: str) -> None:
        self.stages.append(sentence)

    def step(self, number: int, *losses: float) -> None:
        self.steps.append((number, *losses))

    def part(self, done: int, total: int) -> None:
        self.parts.append((done, total))
