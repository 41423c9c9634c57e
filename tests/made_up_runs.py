"""Summaries of runs that never were, with every document a report reads."""

import base64
import math
import struct
import zlib
from typing import Any

from bayesnorm.report.summary import Summary

CLASSES = ["cat", "dog", "bird", "fish", "frog", "horse", "ship"]
LAYERS = {"features.0": 6, "features.2": 12, "classifier": 3}


def png(size: int = 4, value: int = 128) -> str:
    """A grey picture in base64."""
    rows = b"".join(b"\0" + bytes([value]) * size for _ in range(size))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(whole).decode()


def record(epoch: int, factor: float = 1.0) -> dict[str, Any]:
    """Measurements of an epoch."""
    loss = factor * (0.05 + 2.0 / epoch)
    return {
        **{"epoch": epoch, "step": 10 * epoch, "lr": 0.1, "train_loss": loss + 0.1, "train_nll": loss, "kl": 5.0},
        **{"train_eval_nll": 0.8 * loss, "train_eval_accuracy": 0.9, "val_nll": 1.25 * loss},
        **{"val_accuracy": 1 - 0.3 * factor / epoch, "val_ece": 0.02, "sigma_over_s": {}},
    }


def metrics(**changed: Any) -> dict[str, Any]:
    """Of one way of predicting."""
    return {
        **{"count": 1000, "accuracy": 0.9, "nll": 0.3, "ece": 0.03, "adaptive_ece": 0.031, "brier": 0.15},
        **{"entropy": 0.2, "mutual_info": 0.01, "aurc": 0.012, "excess_aurc": 0.007, "aurc_max_prob": 0.013},
        **{"coverage_at_1": 0.7, "temperature": 1.4, "calibrated_nll": 0.28, "calibrated_ece": 0.01},
        **changed,
    }


def reliability() -> dict[str, list[Any]]:
    """Fifteen bins, the lower ones empty."""
    counts = [0] * 7 + [3, 5, 8, 13, 21, 50, 100, 800]
    confidence = [(i + 0.4) / 15 if n else None for i, n in enumerate(counts)]
    accuracy = [None if c is None else max(0.0, c - 0.05) for c in confidence]
    return {"count": counts, "confidence": confidence, "accuracy": accuracy}


def coverage(error: float) -> dict[str, Any]:
    """Curves that end at the error of all images."""
    shares = [(index + 1) / 200 for index in range(200)]
    return {
        score: {"coverage": shares, "risk": [error * share**power for share in shares]}
        for score, power in (("entropy", 2), ("max_prob", 3))
    }


def evaluation(ways: dict[str, dict[str, Any]], bayes: bool) -> dict[str, Any]:
    """The document of a run that predicts in these ways."""
    channels = {name: [0.1 + 0.02 * i for i in range(count)] for name, count in LAYERS.items()} if bayes else {}
    return {
        **{"split": "test", "samples": 30, "step": 100, "network": "abc", "data": "pets"},
        **{"classes": CLASSES, "images": 1000},
        "metrics": ways,
        "reliability": {way: reliability() for way in ways},
        "coverage": {way: coverage(1 - found["accuracy"]) for way, found in ways.items()},
        "sigma_over_s": {name: sum(values) / len(values) for name, values in channels.items()},
        "channels": channels,
        "new key": {"of a later version": 1},
    }


def entry(index: int, target: int, probs: list[float]) -> dict[str, Any]:
    """A classified image."""
    entropy = -sum(p * math.log(p) for p in probs if p)
    return {
        **{"index": index, "image": png(), "entropy": entropy, "mutual_info": 0.05},
        **{"target": target, "probs": probs},
    }


def examples() -> dict[str, Any]:
    """Eight certain and eight uncertain images."""
    sure, unsure = [0.94, *[0.01] * 6], [0.1, 0.3, 0.2, 0.15, 0.15, 0.06, 0.04]
    return {
        **{"way": "mc30", "classes": CLASSES},
        "certain": [entry(i, 0, sure) for i in range(8)],
        "uncertain": [entry(100 + i, 2 if i % 2 else 1, unsure) for i in range(8)],
    }


def segmented() -> dict[str, Any]:
    """Examples whose predictions are masks."""
    maps = {part: png() for part in ("image", "truth", "predicted", "entropy_map", "mutual_info_map")}
    entries = [{"index": i, **maps, "entropy": 0.1, "mutual_info": 0.01} for i in range(8)]
    told = {"way": "mc30", "classes": ["background", "cell"], "tops": {"entropy": 0.6931, "mutual_info": 0.0123}}
    return {**told, "certain": entries, "uncertain": entries}


def robustness() -> dict[str, Any]:
    """Metrics that fall with the strength."""
    strengths = (0.0, 0.1, 0.2, 0.4)
    points = [{"strength": s, "accuracy": 0.9 - s, "nll": 0.3 + 2 * s, "ece": 0.03 + 0.1 * s} for s in strengths]
    return {"count": 500, "noise": points, "attack": points}


def run(name: str = "first", bayes: bool = True, epochs: int = 20, **changed: Any) -> Summary:
    """A run with all documents; ``changed`` replaces fields."""
    better = metrics(accuracy=0.92, nll=0.25)
    ways = {"single": metrics(), "mc10": better, "mc30": {**better, "nll": 0.2401}} if bayes else {"single": metrics()}
    fields: dict[str, Any] = {
        **{"name": name, "method": "weight+projection+bayes" if bayes else "batch", "data": "pets"},
        "config": {"epochs": epochs, "lr": "auto", "project": bayes, "clip": None},
        "recipe": {"norm": "weight" if bayes else "batch", "scale": "bayes" if bayes else "point", "model": "all-cnn"},
        "environment": {"python": "3.11.7", "versions": {"torch": "2.13.0"}, "command": ["bayesnorm", "train"]},
        "history": [record(epoch, 1.0 if bayes else 1.5) for epoch in range(1, epochs + 1)],
        "result": {"state": "finished", "lr": 0.0123},
        "evaluation": evaluation(ways, bayes),
        "examples": examples(),
        "robustness": robustness(),
    }
    return Summary(**{**fields, **changed})
