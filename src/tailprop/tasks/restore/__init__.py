"""Image restoration."""

from tailprop.engine.task import TaskSpec

SPEC = TaskSpec(
    package=__name__,
    title="image restoration",
    config="config:RestoreConfig",
    task="task:Restoration",
    load="load:load_restorer",
    evaluate="evaluate:RestoreEval",
    predict="predict:RestorePredict",
    bench="bench:BenchRestore",
    metrics={"psnr": "PSNR, dB", "ssim": "SSIM", "psnr_b": "PSNR-B, dB", "val_loss": "test loss"},
    export="export:create_export",
    exported="exported",
    artifacts=("learning.png", "restored.png"),
)
