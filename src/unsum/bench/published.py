"""Figures of the two papers, as published: for the rows they belong to, and for the scripts in `benchmarks/`.

RGLA: ResNet-50 with ImageNet weights and a random head, 224², BatchNorm in train mode, 100 batches, RTX 3090.
"""

RGLA_BY_BATCH = {  # tables 8 and 10: PSNR / SSIM / LPIPS
    8: "19.242 / .509 / .559",
    16: "19.080 / .500 / .562",
    32: "18.924 / .498 / .566",
    64: "18.746 / .494 / .571",
    128: "18.693 / .494 / .583",
    256: "18.569 / .493 / .595",
}
FGLA_BY_BATCH = {8: "18.43", 16: "18.42", 32: "18.41", 64: "18.33", 128: "18.17", 256: "18.09"}  # PSNR
RGLA_WITH_ILRG = "19.227 (91.7 s)"  # B = 8, labels by iLRG
RGLA_BY_DUPLICATES = {0: "19.242", 2: "18.936", 4: "18.556", 6: "18.178", 8: "17.845"}  # of 8 labels; PSNR
FGLA_BY_DUPLICATES = {0: "18.779", 2: "16.963", 4: "15.182", 6: "12.805", 8: "10.748"}
MATCHING_BY_DUPLICATES = {  # the ends alone: 0 and 8 of 8
    "dlg": {0: "11.54", 8: "10.25"},
    "ig": {0: "15.22", 8: "12.20"},
    "ggl": {0: "11.79", 8: "9.60"},
}
BY_DEFENSE = {  # table 2: PSNR; RGLA's with SSIM / LPIPS
    "noise:0.01": {"dlg": "11.91", "ig": "14.26", "ggl": "11.26", "fgla": "18.84", "rgla": "18.91 / .529 / .518"},
    "clip:4": {"dlg": "9.95", "ig": "12.55", "ggl": "10.19", "fgla": "17.43", "rgla": "16.13 / .413 / .682"},
    "prune:0.999": {"dlg": "11.19", "ig": "12.46", "ggl": "10.55", "fgla": "10.45", "rgla": "16.29 / .484 / .603"},
}
BY_PRUNING = {  # table 12: PSNR
    **{key: {"rgla": "18.79", "fgla": "18.78"} for key in ("none", "prune:0.8", "prune:0.9", "prune:0.99")},
    "prune:0.999": {"rgla": "17.01", "fgla": "~10"},
}
BY_OBJECTIVES = {("w",): "14.56", ("w", "loss"): "19.16", ("w", "b"): "14.56", ("w", "b", "loss"): "19.24"}  # table 3
BY_CLASSES = {64: "20.68 / .792 / .328", 128: "7.85 / .316 / .929"}  # table 4: C = 100, by batch
LOGITS_BY_BATCH = {8: "8.8e-5", 16: "2e-4", 32: "7e-4", 64: "1.3e-3", 128: "3.2e-3", 256: "3.6e-3"}  # table 9
ACCURACIES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)  # table 5's columns
LOSS_ERRORS = {  # table 5: L2 over 100 batches, by the accuracies
    8: (0.10, 0.58, 1.36, 2.79, 3.44, 4.04),
    256: (0.06, 0.97, 3.43, 8.57, 13.1, 19.2),
}
SOFT_FCN = "51.2 / .9996 / .0015 (4.2 s)"  # soft labels: PSNR / SSIM / LPIPS of one 64² flower; DLG on it 8.3
SOFT_FCN_DLG = "8.3"
