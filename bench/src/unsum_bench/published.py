"""Figures of the two papers, as published: for the rows they belong to, and for `scripts`.

RGLA: ResNet-50 with ImageNet weights and a random head, 224², B = 8, labels granted and drawn at
random with repetition, BatchNorm in train mode, 100 batches, RTX 3090. Triples are PSNR / SSIM /
LPIPS.
"""

# table 1: largest batch × photo size; RGLA alone is fast, for strict defenses and for duplicate
# labels
BY_REACH = {
    "RGLA": "(C+1) × 224²",
    "FGLA": "256 × 224²",
    "Fowl": "64 × 224²",
    "R-GAP": "1 × 32²",
}
RGLA_BY_BATCH = {  # table 10
    8: "19.242 / .509 / .559",
    16: "19.080 / .500 / .562",
    32: "18.924 / .498 / .566",
    64: "18.746 / .494 / .571",
    128: "18.693 / .494 / .583",
    256: "18.569 / .493 / .595",
}
FGLA_BY_BATCH = {  # table 10
    8: "18.43 / .460 / .604",
    16: "18.42 / .460 / .615",
    32: "18.41 / .460 / .661",
    64: "18.33 / .447 / .700",
    128: "18.17 / .438 / .720",
    256: "18.09 / .426 / .740",
}
# table 9
BY_LABELS = {"granted": "19.242 / .509 / .559 (14.35 s)", "ilrg": "19.227 / .500 / .568 (91.7 s)"}
# table 8, of 8 labels; PSNR
RGLA_BY_DUPLICATES = {0: "19.242", 2: "18.936", 4: "18.556", 6: "18.178", 8: "17.845"}
FGLA_BY_DUPLICATES = {0: "18.779", 2: "16.963", 4: "15.182", 6: "12.805", 8: "10.748"}
MATCHING_BY_DUPLICATES = {
    "dlg": {0: "11.54", 2: "11.26", 4: "10.98", 6: "10.61", 8: "10.25"},
    "ig": {0: "15.22", 2: "14.31", 4: "13.93", 6: "12.11", 8: "12.20"},
    "ggl": {0: "11.79", 2: "11.19", 4: "10.93", 6: "10.53", 8: "9.60"},
}
BY_DEFENSE = {  # table 2
    "noise:0.01": {
        "dlg": "11.91 / .091 / 1.120",
        "ig": "14.26 / .444 / .578",
        "ggl": "11.26 / .323 / .568",
        "fgla": "18.84 / .485 / .555",
        "rgla": "18.91 / .529 / .518",
    },
    "clip:4": {
        "dlg": "9.95 / .101 / 1.175",
        "ig": "12.55 / .423 / .546",
        "ggl": "10.19 / .273 / .564",
        "fgla": "17.43 / .468 / .636",
        "rgla": "16.13 / .413 / .682",
    },
    "prune:0.999": {
        "dlg": "11.19 / .072 / 1.235",
        "ig": "12.46 / .442 / .801",
        "ggl": "10.55 / .280 / .608",
        "fgla": "10.45 / .264 / .884",
        "rgla": "16.29 / .484 / .603",
    },
}
BY_PRUNING = {  # table 12: PSNR
    **{
        key: {"rgla": "18.79", "fgla": "18.78"}
        for key in ("none", "prune:0.8", "prune:0.9", "prune:0.99")
    },
    "prune:0.999": {"rgla": "17.01", "fgla": "~10"},
}
BY_OBJECTIVES = {  # table 3
    ("w",): "14.56 / .389 / .718",
    ("w", "loss"): "19.16 / .501 / .570",
    ("w", "b"): "14.56 / .389 / .718",
    ("w", "b", "loss"): "19.24 / .509 / .559",
}
BY_CLASSES = {64: "20.68 / .792 / .328", 128: "7.85 / .316 / .929"}  # table 4: C = 100, by batch
# table 6
LOGITS_BY_BATCH = {8: "8.78e-5", 16: "2e-4", 32: "7e-4", 64: "1.3e-3", 128: "3.2e-3", 256: "3.6e-3"}
BY_START = "19.2415 / .5095 / .5587"  # table 7: all six, equal to the fourth digit
# table 11
BY_SIDE = {224: "19.242 / .509 / .559", 336: "somewhat lower (figures lost in our copy)"}
ACCURACIES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9)  # table 5's columns
LOSS_ERRORS = {  # table 5: "average L2 error" of l̂ over 100 batches, by the accuracies
    8: (0.10, 0.58, 1.36, 2.79, 3.44, 4.04),
    16: (0.083, 0.718, 2.00, 3.11, 5.83, 7.08),
    32: (0.068, 0.845, 2.60, 4.35, 8.17, 10.64),
    64: (0.062, 0.932, 2.98, 6.48, 10.26, 14.11),
    128: (0.066, 0.955, 3.23, 7.54, 11.91, 17.13),
    256: (0.06, 0.97, 3.43, 8.57, 13.1, 19.2),
}
# soft labels: PSNR / SSIM / LPIPS of one 64² flower; DLG on it 8.3
SOFT_FCN = "51.2 / .9996 / .0015 (4.2 s)"
SOFT_FCN_DLG = "8.3"
