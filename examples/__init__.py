"""Programs that use the package: short examples, applications, and the laboratory."""
