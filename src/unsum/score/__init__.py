"""Truth against Leak: the only place where an attack's answer meets what was really in the
batch."""

from unsum.models.lpips import lpips_status
from unsum.score.samples import SampleScore, score, score_samples, summarize

__all__ = ["SampleScore", "lpips_status", "score", "score_samples", "summarize"]
