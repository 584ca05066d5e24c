"""Dataset formats: COCO json, label PNGs, parquet snapshots."""
