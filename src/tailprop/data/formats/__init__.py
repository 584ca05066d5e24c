"""Dataset formats: COCO json, label map PNGs, parquet snapshots."""
