"""Object detection and instance segmentation."""

from tailprop.engine.task import TaskSpec

SPEC = TaskSpec(
    package=__name__,
    title="object detection and instance segmentation",
    config="config:DetectConfig",
    task="task:Detection",
    load="load:load_detector",
    evaluate="evaluate:DetectEval",
    predict="predict:DetectPredict",
    bench="bench:BenchDetect",
    metrics={
        "box_ap": "box AP, %",
        "mask_ap": "mask AP, %",
        "box_ap50": "box AP50, %",
        "box_ap75": "box AP75, %",
        "mask_ap50": "mask AP50, %",
        "mask_ap75": "mask AP75, %",
        "val_loss": "validation loss",
    },
    export="export:create_export",
    exported="exported",
    hub="hub:hub_config",
    artifacts=("learning.png", "predictions.jpg", "pictures.jpg", "coco_results.json", "coco_results.json.sha256"),
)
