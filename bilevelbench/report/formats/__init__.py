"""A report as text, Markdown, LaTeX or a page."""
