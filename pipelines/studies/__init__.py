"""Studies: a base experiment × axes × seeds, and the tables, figures and claims drawn from it."""
