"""Reports: tidy tables in; tables, figures and pages out. Never imports torch."""
