"""Image classification."""

from tailprop.engine.task import TaskSpec

SPEC = TaskSpec(
    package=__name__,
    title="image classification",
    config="config:ClassifyConfig",
    task="task:Classification",
    load="load:load_classifier",
    evaluate="evaluate:ClassifyEval",
    predict="predict:ClassifyPredict",
    metrics={"top1": "top-1, %", "top5": "top-5, %", "val_loss": "validation loss"},
    export="export:create_export",
    exported="exported",
    hub="hub:hub_config",
    artifacts=("learning.png", "confusion.png"),
)
