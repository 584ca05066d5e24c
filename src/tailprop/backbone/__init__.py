"""The operator, the mixers it is compared with, and the backbones. Self-contained: imports torch and timm only."""
