"""A model whose right answer is known, asked so that one wrong state shows in what it says."""
