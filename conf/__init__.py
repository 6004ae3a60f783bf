"""What to run: Hydra's files, packaged as `pipelines.conf` so that an installed wheel finds them from any directory."""
