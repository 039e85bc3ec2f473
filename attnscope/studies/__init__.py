"""One folder for each kind of question: what it computes, its findings' screen."""
