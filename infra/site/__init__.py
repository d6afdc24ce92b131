"""The documentation site: `make docs` builds it from README.md and docs/ into build/site/."""
