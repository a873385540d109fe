"""Conversion of arrays: floats of 16 and 32 bits (floats.py), quantized blocks (quant.py)."""
