"""Semantic segmentation."""

from tailprop.engine.task import TaskSpec

SPEC = TaskSpec(
    package=__name__,
    title="semantic segmentation",
    config="config:SegmentConfig",
    task="task:Segmentation",
    load="load:load_segmenter",
    evaluate="evaluate:SegmentEval",
    predict="predict:SegmentPredict",
    bench="bench:BenchSegment",
    metrics={
        "miou": "mean IoU, %",
        "pixel_accuracy": "pixel accuracy, %",
        "class_accuracy": "mean class accuracy, %",
        "val_loss": "validation loss",
    },
    export="export:create_export",
    exported="exported",
    hub="hub:hub_config",
    artifacts=("learning.png", "predictions.jpg", "pictures.jpg"),
)
