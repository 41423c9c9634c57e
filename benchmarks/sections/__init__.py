"""The parts of ``gpu.py``, each a table: ``run(options)`` measures and writes it."""
