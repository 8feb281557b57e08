"""What the tables of several papers share: columns, and how many batches there are of each size."""

from __future__ import annotations

from collections.abc import Mapping

from unsum_bench.declare import Column, Size

SEEDS: Mapping[Size, int] = {"smoke": 1, "small": 3, "paper": 100}
PSNR = Column("psnr", "PSNR")
SSIM = Column("ssim", "SSIM", ".3f")
LPIPS = Column("lpips", "LPIPS", ".3f")
LEAKAGE = Column("leakage", "leakage", ".2f")
LABELS = Column("labels", "labels right", ".0%")
COSINE = Column("cosine", "cosine", ".4f")
SECONDS = Column("attack_seconds", "seconds", ".2f", "median")
PROCESSOR = Column("attack_cpu", "of CPU", ".2f", "median")  # what a busy machine leaves alone
