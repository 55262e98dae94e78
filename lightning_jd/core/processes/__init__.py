"""The other processes of a run: what each of them has, and how little they tell one another."""
