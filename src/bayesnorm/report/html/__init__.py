"""The report as one self-contained page: what it says, how it is drawn, and what brings it to life."""
