"""The operator, its rivals and the backbones. Imports torch and timm only, and can be lifted out alone."""
