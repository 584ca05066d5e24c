"""The operator, the mixers it is compared with, and the backbones. Self-contained: imports torch and timm only."""

import timm  # noqa: F401 - first: the models are registered right after its import, and a half-imported file could not be
