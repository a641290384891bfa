"""Where packs run."""
