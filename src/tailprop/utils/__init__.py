"""What every layer may use: checks, files, text. No torch."""
