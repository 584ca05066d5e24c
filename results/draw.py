"""Draw a PNG beside each table of this folder that no run draws itself: python results/draw.py."""

import csv
from pathlib import Path
from typing import Any

from tailprop.studies.bench.figure import draw_rates
from tailprop.tasks.common.figures import draw_learning
from tailprop.tasks.common.look import look, new_figure, save_figure

FOLDER = Path(__file__).parent
Row = dict[str, str]


TOP1 = {"top1": "top-1, %"}
SEGMENTED = {"miou": "mean IoU, %", "pixel_accuracy": "pixel accuracy, %"}
RESTORED = {"psnr": "PSNR, dB"}
DETECTED = {"box_ap": "box AP, %", "mask_ap": "mask AP, %"}
# metrics, what they were measured on, and a title for the table of each run
RUNS = {
    "imagenette": (TOP1, "validation", "tailprop_nano, Imagenette at 64 px"),
    "cifar10": (TOP1, "validation", "tailprop_pico with three stages, CIFAR-10"),
    "shapes_upernet": (SEGMENTED, "validation", "UPerNet with tailprop_pico, generated scenes"),
    "ade20k_overfit": (SEGMENTED, "training images", "UPerNet with tailprop_tiny, three images of ADE20K"),
    "shapes_maskrcnn": (DETECTED, "validation", "Mask R-CNN with tailprop_pico, generated scenes"),
    "coco_tiny_overfit": (DETECTED, "training images", "Mask R-CNN with tailprop_nano, eight images of COCO"),
    "super_resolution": (RESTORED, "Set12", "tailprop_ir_light, twice as large; bicubic has 29.18 dB"),
    "coco_tiny_1x": (DETECTED, "training images", "Mask R-CNN with tailprop_tiny, eight images of COCO"),
}
BEFORE_ONEDNN = "a40df57"  # rows that are kept for the rate with PyTorch's products
RATES = {"img_per_s_best": "best round", "img_per_s_median": "median"}


@look()
def main() -> None:
    now = [row for row in read("bench_cpu") if row["commit"] != BEFORE_ONEDNN]
    draw_rates(_once(now), FOLDER / "bench_cpu.png")
    bars("bench_detect", read("bench_detect"), "{model}", RATES, "images per second")
    bars("loader_cpu", read("loader_cpu"), "{batches}", RATES, "images per second")
    for name in ("detect_macs", "segment_macs"):
        rows = [row | {"gmacs": str(float(row["macs"]) / 1e9)} for row in read(name)]
        bars(name, rows, "{model}", {"gmacs": "counted", "paper_gmacs": "the paper"}, "GMACs")
    bars("scale_init", read("scale_init"), "{trial}", {"top1": "top-1"}, "top-1 on Imagenette at 64 px, %")
    bars("restoration_inputs", read("restoration_inputs"), "{set}, {degradation}", {"psnr": "PSNR", "psnr_b": "PSNR-B"}, "dB")
    bars(
        "restoration_tiles", read("restoration_tiles"), "{tile_px}", {"psnr": "PSNR"}, "PSNR on Set12 by side of the tiles, dB"
    )
    costs = [row | {"us": str(float(row["ns_per_px"]) / 1000)} for row in read("restoration_cost")]
    bars("restoration_cost", costs, "{side_px} px", {"us": "CPU time"}, "microseconds per pixel by side of the image")
    tuned = [row | {"top1": row["mean"]} for row in read("finetune/summary")]
    bars("finetune/summary", tuned, "{variant}", TOP1, "top-1 on 2,000 images of CIFAR-10, %, mean of three seeds")
    for name, (metrics, measured_on, title) in RUNS.items():
        draw_learning(history(name, metrics), FOLDER / f"{name}.png", metrics, measured_on, title)


def history(name: str, metrics: dict[str, str]) -> list[dict[str, float]]:
    """The epochs of a run's table."""
    wanted = ("epoch", "loss", "val_loss", *metrics)
    return [{key: float(row[key]) for key in wanted if row.get(key)} for row in read(name)]


def _once(rows: list[Row]) -> list[Row]:
    """The first row of each model under a setting: several runs in one file repeat the model they compare with."""
    first: dict[tuple[str, ...], Row] = {}
    for row in rows:
        first.setdefault(tuple(row[name] for name in ("mode", "form", "dtype", "model")), row)
    return list(first.values())


def read(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def bars(name: str, rows: list[Row], label: str, columns: dict[str, str], title: str) -> None:
    """Horizontal bars, a group for each row and a bar for each column that has a number there."""
    figure = new_figure(7, 0.9 + 0.32 * len(rows) * len(columns))
    axes: Any = figure.subplots()
    height = 0.8 / len(columns)
    for place, (column, legend) in enumerate(columns.items()):
        shown = [(y + place * height, float(row[column])) for y, row in enumerate(rows) if row[column]]
        drawn = axes.barh([y for y, _ in shown], [value for _, value in shown], height, label=legend)
        axes.bar_label(drawn, [f"{value:.4g}" for _, value in shown], padding=3, fontsize=8)
    axes.set_yticks([y + 0.4 - height / 2 for y in range(len(rows))], [label.format(**row) for row in rows])
    axes.set(xlabel=title)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    if len(columns) > 1:
        figure.legend(loc="outside upper center", ncols=2)
    save_figure(figure, FOLDER / f"{name}.png")


if __name__ == "__main__":
    main()
