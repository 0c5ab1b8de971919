"""Explanations: a headline, labelled sentences and the story of a subject."""
