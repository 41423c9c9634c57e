"""Sections of the page, one per file; each makes markup of the summaries and enters its charts into the book."""
