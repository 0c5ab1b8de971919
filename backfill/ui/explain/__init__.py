"""Why things are as they are: a headline, labelled sentences and the story of a subject."""
