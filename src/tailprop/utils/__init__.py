"""Helpers for every layer: checks, files, text. Imports no torch."""
