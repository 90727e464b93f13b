"""Gates: questions to a running server whose right answers are known."""
