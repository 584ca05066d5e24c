"""Semantic segmentation."""
