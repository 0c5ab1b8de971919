"""One concern per file; each check looks at planted or gathered facts alone."""
