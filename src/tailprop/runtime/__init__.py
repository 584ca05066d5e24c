"""The process and the machine: distributed launches, random numbers, signals, memory, precision."""
