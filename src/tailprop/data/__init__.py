"""Datasets: reading images and annotations, sampling, loading batches."""
