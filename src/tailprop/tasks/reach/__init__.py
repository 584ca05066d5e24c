"""Tasks that cannot be solved without reach: labels, answers and colours that depend on far pixels."""

from tailprop.engine.task import TaskSpec

SPEC = TaskSpec(
    package=__name__,
    title="tasks that need reach",
    config="config:ReachConfig",
    task="task:Reach",
    load="load:load_reach",
    evaluate="evaluate:ReachEval",
    predict="predict:ReachPredict",
    metrics={"score": "accuracy, %, or PSNR, dB", "val_loss": "test loss"},
    artifacts=("learning.png", "examples.png"),
)
