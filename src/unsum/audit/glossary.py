"""The words of the reports in plain language, for people who do not train networks."""

from __future__ import annotations

from unsum.models.lpips import lpips_status


def glossary() -> list[tuple[str, str]]:
    """Words and what they mean, in the order in which they are needed."""
    return [
        (
            "Federated learning",
            "Many clients (phones, hospitals) train one model together: each trains on its own data and sends only the change "
            "of the model to a server.",
        ),
        (
            "Update",
            "What a client sends to the server after training on its own data; here, one gradient. The samples themselves "
            "never leave the client.",
        ),
        (
            "Gradient",
            "The direction in which a client's samples would change each weight of the model: a sum over those samples.",
        ),
        (
            "Sample",
            "One private item that the client trained on, such as a photo. A batch is the samples of one update.",
        ),
        (
            "Leakage",
            "How much of what sets a sample apart from the client's other samples came back, from 0 % (no better than a typical "
            "sample of this client) to 100 % (the sample itself). It is measured on features and on pixels, and the larger one "
            "counts. A label that was found is not part of it.",
        ),
        ("Label", "The class that the client assigned to a sample, such as what a photo shows."),
        (
            "Feature",
            "The numbers that the model computes from one sample just before its last layer. The feature error is the distance "
            "between found and true features, relative to the true ones: 0 is perfect, 1 is no better than guessing zero. "
            "Cosine compares directions alone: 1 is the same.",
        ),
        (
            "PSNR",
            "Peak signal-to-noise ratio in decibels: how close the pixels are, higher is closer. It is computed for each "
            "picture; the mean is the mean of these values.",
        ),
        ("SSIM", "Structural similarity: whether edges and textures agree. 1 is the same picture, 0 is unrelated."),
        (
            "LPIPS",
            " ".join(
                filter(
                    None,
                    [
                        "A distance between pictures as a neural network perceives them; lower is closer.",
                        lpips_status(),
                    ],
                )
            ),
        ),
        (
            "Certificate",
            "The attacker's own statement that its answer is right. It is worked out from the update alone, so a real attacker "
            "would have it, too.",
        ),
        ("Defense", "A change that the client makes before or while it computes the update, such as added noise."),
    ]
